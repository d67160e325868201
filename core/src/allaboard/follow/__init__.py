"""What was seen becomes meaning over time: progress, the run record, restarts, and the end of a run.

`loop` follows a run to its `Outcome`; `restart` decides about another attempt. Values in, values out: whoever
calls brings the clock and the backend.
"""
