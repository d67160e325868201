"""The methods of the backend as functions: `runs` for runs of ours, `foreign` for jobs that others made."""
