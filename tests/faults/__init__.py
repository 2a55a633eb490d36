"""Real processes killed, stopped, starved and cut off, with real signals and real disks.

May import: the product, bench, tests.
"""
