"""The gate that a checkpoint must pass, and the champion.

`gate` judges the metrics of an evaluation; `champion` promotes a checkpoint in a store and rolls back.
"""
