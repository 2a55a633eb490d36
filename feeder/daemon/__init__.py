"""The supervisor, which keeps a node process on each NUMA node, and its configuration.

May import: errors, metrics, remedies, plan, wire, process, host, jpeg,
dataset, sample, security, client, session, choose, worker, disk_cache, node, diagnosis,
monitoring, doctor.
"""
