"""Packed copies of sources, made and found in this process.

May import: the product, bench, tests.
"""
