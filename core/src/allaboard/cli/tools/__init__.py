"""Commands for jobs, manifests and clusters."""
