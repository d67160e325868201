"""Texts that people read about a run: shared by the command line and by the steps of a pipeline.

There are two layers. `phrases`, `curves`, `chart`, `history`, `html`, `page_data`, `page` and `runs_page`
turn values into values and text: `page_data` makes the one value with everything about a run, `page` a file
of it. Above them, `output` reads what members write and `reading` what else a page shows, `terminal` writes
to the terminal, and `plain`, `ending` and `attached_run` follow a run. This layer may call a backend, read
the clock, write to stdout and stderr, and handle signals. Nothing here writes a file.
"""
