"""Packing, verifying and unpacking, with sources of every kind.

May import: the product, bench, tests.
"""
