"""Streaming for hours: does anything grow?

May import: the product, bench, bench.data.
"""
