"""Fault injection on real processes: kills, stops, starvation, cut networks, failing disks.

May import: the product, bench, tests.
"""
