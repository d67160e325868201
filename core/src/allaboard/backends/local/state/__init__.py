"""What a run keeps on this machine: its folder, its record, its logs."""
