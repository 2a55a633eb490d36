"""Tests of the training recipes.

May import: the product, bench, tests.
"""
