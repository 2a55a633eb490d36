"""Checks on a device: exact normalising, its bandwidth, copies from slots, a fed training step.

May import: the product, bench, bench.data.
"""
