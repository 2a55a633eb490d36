"""The files of a dataset; every damage is detected.

May import: the product, bench, tests.
"""
