"""The loader: order, epochs, ranks, resuming, faults.

May import: the product, bench, tests.
"""
