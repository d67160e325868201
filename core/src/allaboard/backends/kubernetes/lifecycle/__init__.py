"""Changes a run on a cluster: `prepare` and `launch` start it exactly once, `stop` ends or suspends it, and
`orphans` finds runs that no process follows any more.
"""
