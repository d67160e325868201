"""State of allaboard on a cluster: run records (`records`) and the Leases of followers (`leases`)."""
