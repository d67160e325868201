"""The connection."""
