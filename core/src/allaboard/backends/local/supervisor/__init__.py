"""The process that starts, watches, restarts and ends a run's members, and outlives its client.

`isolated_command` starts it; `controller` decides what happens to members,
`reaper` is their parent, `probes` watches their logs and port, `secrets` and `environment` make their
environment.
"""
