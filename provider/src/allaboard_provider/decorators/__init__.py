"""The TaskFlow decorators: `@task.training`."""
