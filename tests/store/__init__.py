"""Tests of feeder.store.

May import: the product, bench, tests.
"""
