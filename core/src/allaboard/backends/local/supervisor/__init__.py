"""The process beside a run's members: it starts, watches, restarts and ends them, and outlives its client.

`python -m allaboard.backends.local.supervisor` starts it; `controller` decides what happens to members,
`reaper` is their parent, `probes` look at them, `secrets` and `environment` make what they are given.
"""
