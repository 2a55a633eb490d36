"""The supervisor, its configuration, and the real daemon as clients and people see it.

May import: the product, bench, tests.
"""
