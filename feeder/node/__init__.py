"""The process that owns a NUMA node's socket, slots and workers.

May import: errors, metrics, remedies, plan, wire, process, host, jpeg,
dataset, sample, security, session, worker, disk_cache.
"""
