"""Commands for checkpoints, shards, evaluation and promotion."""
