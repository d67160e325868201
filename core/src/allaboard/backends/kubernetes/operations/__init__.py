"""What each method of the backend does: `runs` for runs of ours, `foreign` for jobs that others made."""
