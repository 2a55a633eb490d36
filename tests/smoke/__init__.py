"""The smoke recipe as its users run it: `make test-smoke`, some six minutes on two cores.

May import: the product, bench, tests.
"""
