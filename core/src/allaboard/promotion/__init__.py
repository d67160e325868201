"""Which checkpoint is good enough, and which one is the champion.

`gate` judges the metrics of an evaluation; `champion` promotes a checkpoint in a store and rolls back.
"""
