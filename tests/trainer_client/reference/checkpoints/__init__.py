"""Tests of where checkpoints are kept.

May import: the product, bench, tests.
"""
