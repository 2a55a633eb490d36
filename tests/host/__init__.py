"""Machines of every kind, from trees of files; real placement on this one.

May import: the product, bench, tests.
"""
