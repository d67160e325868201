"""Backends: the places where runs live. All answer the same questions; this package imports none of them."""
