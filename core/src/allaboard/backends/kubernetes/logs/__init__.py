"""Logs of members, which outlive their pods.

`stream` reads and merges logs, `parsing` splits them into lines, and `cache` keeps the lines that were read.
`capture` and `collector` read the ends of logs before pods go, `archive` keeps them for other processes, and
`history` names the pods of earlier tries.
"""
