"""What people and the system write: configuration, recipe fields, endpoints, CPU lists, topology."""

TARGETS = ()
