"""Stacks of the processes of a run on a cluster: `asking` runs `script` in the containers of its members,
through the API server, and reads its output; `by_file` has it run there from the start, and asks it by a
file.
"""
