"""From manifests to jobs, and from a manifest of one kind to another kind: `manifests`. How an engine reads
the objects of its own kind is `allaboard.engines.reading`.
"""
