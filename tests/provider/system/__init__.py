"""A DAG for each class of the provider: what its page of the reference shows. `test_system` runs each."""
