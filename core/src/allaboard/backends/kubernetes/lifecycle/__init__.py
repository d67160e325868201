"""Changes a run on a cluster: `prepare` and `launch` start it exactly once, `stop` ends or suspends it, and
`orphans` finds runs that nobody follows any more.
"""
