"""The policy of a cluster, without Ray.

May import: the product, bench, tests.
"""
