"""The engine of clients against made-up nodes and real daemons.

May import: the product, bench, tests.
"""
