"""Checks that need emulators of other clouds than S3: `make test-stores`, outside `make test`.

May import: the product, bench, tests.
"""
