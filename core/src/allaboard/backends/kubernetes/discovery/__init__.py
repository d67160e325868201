"""What a cluster has: operators, gang schedulers and queues (`components`, `installed`), what its nodes
can hold (`capacity`), and the Roles that we need there (`rbac`). It reads, and writes nothing.
"""
