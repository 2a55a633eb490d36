"""Optimisers, averages and rounding, each against its formula in NumPy.

May import: the product, bench, tests.
"""
