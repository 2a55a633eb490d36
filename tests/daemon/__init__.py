"""The supervisor, its configuration, and the real daemon from outside.

May import: the product, bench, tests.
"""
