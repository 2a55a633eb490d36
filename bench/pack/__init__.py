"""Packing the same images from each kind of source, beside other formats' writers.

May import: the product, bench, bench.data, bench.rivals.
"""
