"""Pixels: re-coding, decoding and resizing against the libraries' own.

May import: the product, bench, tests.
"""
