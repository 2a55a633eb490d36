"""Training on many ranks: real processes with gloo, compared with one process.

May import: the product, bench, tests.
"""
