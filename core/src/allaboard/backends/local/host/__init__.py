"""This machine: processes and their trees, its CPUs and GPUs, and folders that its users share."""
