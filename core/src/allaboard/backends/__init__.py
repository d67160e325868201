"""Backends: the places where runs live. Each answers the same questions; this package imports none of them."""
