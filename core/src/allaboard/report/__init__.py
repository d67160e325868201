"""What people read about a run: shared by the command line and by the steps of a pipeline.

There are two layers. `words`, `chart`, `history`, `html` and `page` turn values into text; `page` makes the
one file with everything about a run. Above them, `page_data` reads from a backend what a page shows,
`terminal` writes to the terminal, and `plain`, `ending` and `attached_run` follow a run. This layer may call
a backend, read the clock, write to stdout and stderr, and handle signals. Nothing here writes a file.
"""
