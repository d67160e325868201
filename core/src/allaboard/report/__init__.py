"""What people are told of a run, whoever tells them: the command line's verbs, a component's step.

Two storeys. What a run looks like is made of values alone, values in and text out: `words`, `chart`,
`history`, `html`, and `page`, the one file with everything about a run. Above stand those who say it:
`reading` asks a backend for what a page shows, `saying` is the edge of the terminal, and `plain`, `ending`
and `following` tell of a run that goes on. These may ask a backend, read the clock, write to stdout and
stderr, and take signals. Nothing here writes a file.
"""
