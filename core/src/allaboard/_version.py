"""The version of the package, and nothing else: everybody may import it."""

__version__ = "0.1.0"
