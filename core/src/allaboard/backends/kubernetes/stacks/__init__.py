"""Where the processes of a run on a cluster are: `asking` runs `script` in the containers of its members,
through the API server, and reads what it prints; `by_file` has it run there from the start, and asks it by a
file.
"""
