"""Runs on a Kubernetes cluster. Objects are plain JSON mappings everywhere; a client library is imported
where a request is made, never when this package is.
"""
