"""One core and no daemon: each stage of a sample, and how fast it could be at best.

May import: the product, bench, bench.data.
"""
