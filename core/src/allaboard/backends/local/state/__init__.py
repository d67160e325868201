"""State of a run on this machine: its folder, its record, its logs."""
