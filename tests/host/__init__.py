"""Machines of every shape, from trees of files; placement for real on this one.

May import: the product, bench, tests.
"""
