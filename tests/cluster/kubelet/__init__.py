"""A small kubelet: pods of a real API server as network namespaces, their containers as processes of this
machine.

    python -m tests.cluster.kubelet --kubeconfig FILE --node n1:cpu=4,memory=8Gi,nvidia.com/gpu=2

or, in a test, ``with ProcessKubelet(kubeconfig, [NodeSpec("n1", {"nvidia.com/gpu": "2"})]) as kubelet: ...``
(handle.py), which starts the same as a process of its own and asks it for faults over its control socket.

| module | holds |
|---|---|
| kubelet, node, pod, run | the whole; a node; a pod's life; one run of a container |
| status, environment, quantity | what a status, an environment, a quantity is: values in, values out |
| spawner, processes | the process that forks namespaces, and how it is asked |
| network, names, relay | the pods' network and its faults; DNS; the way to the API server |
| images, pulls, volumes, claims, cgroups | what a container sees and may use |
| logs, server, execs, probes, events | what others see of it |
| control, handle, obstacles | asking for faults; the object for tests; whether this machine can do it at all
|

It needs root, Linux and `ip`; ``obstacle()`` tells what is missing. It leaves nothing behind, also when it is
killed with -9: processes, mounts, devices and addresses all live in namespaces that end with it; of its
folder and its control groups the next one sweeps what is left.
"""
