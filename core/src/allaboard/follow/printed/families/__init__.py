"""The formats by family, a file for each: which library prints what, as data."""
