"""The triggers: they wait in the triggerer. A trigger only observes; when somebody must act, it fires, and a
worker acts.
"""
