"""Metrics that other libraries write into files, which a job names in ``metrics``: read by whoever looks at
the run, never in its members.
"""
