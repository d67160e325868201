"""Obstacles that would keep a job from running on a cluster, looked for before it is sent: `gather` asks,
`checks` judge, and `at_launch` asks the cheap part beside a launch.
"""
