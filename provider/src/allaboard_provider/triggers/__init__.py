"""Waiting in the triggerer. A trigger only observes: whatever must act ends it with an event, and a worker
acts.
"""
