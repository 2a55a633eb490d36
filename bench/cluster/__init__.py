"""A discrete-event model of many hosts, on the product's own session machines, and its validation.

May import: the product, bench, bench.data.
"""
