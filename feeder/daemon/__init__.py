"""The supervisor, which keeps a node process on each NUMA node, and its configuration.

May import: errors, metrics, remedies, plan, wire, process, host, jpeg,
dataset, sample, session, worker, node, diagnosis,
monitoring, doctor, disk_cache.
"""
