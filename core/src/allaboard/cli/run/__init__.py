"""Commands that start, stop and remove runs."""
