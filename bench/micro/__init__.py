"""One core and no daemon: each stage of a sample, and its limit.

May import: the product, bench, bench.data.
"""
