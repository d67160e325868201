"""What allaboard writes down on a cluster: run records (`records`) and who follows which run (`leases`)."""
