"""From a job to the objects of a cluster: pure functions, the same for `render`, `run` and the operators.

`manifests` puts together what `pod_template` and the engines make; `labels` holds the names that our objects
carry, `cluster_facts` what is known of a cluster, and `compatibility` which engine goes with which gang
scheduler.
"""
