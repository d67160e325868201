"""Commands that read a run, and the queues that it waits in."""
