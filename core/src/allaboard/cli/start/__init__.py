"""The first command: `allaboard demo`."""
