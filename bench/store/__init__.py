"""A dataset in an object store, beside the same one on the disk.

May import: the product, bench, bench.data.
"""
