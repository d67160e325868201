"""A run over time: progress, the run record, restarts, and the end.

`loop` follows a run to its `Outcome`; `restart` decides about another attempt. Values in, values out: whoever
calls brings the clock and the backend.
"""
