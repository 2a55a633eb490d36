"""The process of one NUMA node: its socket, its slots, its workers.

May import: all of the above.
"""
