"""From objects of a cluster to the fields of a job: what is shared by all kinds. Values in, values out.

An engine turns the objects of its kind into jobs (`allaboard.engines.Engine.to_job`) with the parts of this
room; it knows no engine. `values` holds the result and reads hostile values, `pods` takes a pod template
apart, `replicas` reads the kinds that are a map of replicas, `trainjobs` and `jobsets` those two kinds. A
kind whose job is one pod template is read in four steps: `values.identity` for name and labels,
`pods.read_pods` with its template, `pods.job_fields` for the fields of the job and of its groups,
`values.Reading.conversion`.
"""
