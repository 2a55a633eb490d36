"""The same work by other loaders, each in an environment of its own.

May import: the product, bench, bench.data.
"""
