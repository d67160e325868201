"""The job that a person asks for: its fields, its identity, and the place where it is read from.

`job` and `fields` are the model, `schema` and `explaining` its descriptions, `loader` reads a file,
`identity` names a run and hashes a job, and `site` holds what the place adds (store, mounts, fit). Nothing
here knows a backend; only `site` reads the environment.
"""
