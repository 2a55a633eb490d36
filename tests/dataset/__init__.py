"""The files of a dataset, and every damage found.

May import: the product, bench, tests.
"""
