"""Discovery of a cluster: its operators, gang schedulers and queues (`components`, `installed`), the capacity
of its nodes (`capacity`), and the Roles that we need there (`rbac`). It reads, and writes nothing.
"""
