"""From objects of a cluster to the fields of a job: what is shared by all kinds. Values in, values out.

An engine turns the objects of its kind into jobs (`allaboard.engines.Engine.to_job`) with the parts of this
room; it knows no engine. `values` holds the result and reads hostile values, `pods` takes a pod template
apart, `replicas` reads the kinds that are a map of replicas.
"""
