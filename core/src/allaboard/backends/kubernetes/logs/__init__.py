"""What members wrote, and how it outlives their pods.

`stream` reads and merges logs, `parsing` their lines, `cache` keeps what was read; `capture` and `collector`
read the ends of logs before pods go, `archive` keeps them for other processes, and `history` names the pods
of earlier tries.
"""
