"""The survey of a dataset, and samples with equal sources.

May import: the product, bench, tests.
"""
