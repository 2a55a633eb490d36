"""A worker process, its channel and its slots.

May import: the product, bench, tests.
"""
