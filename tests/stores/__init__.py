"""Checks that need servers of other clouds: `make test-stores`, outside `make test`.

May import: the product, bench, tests.
"""
