"""``feeder doctor``: machines as trees of files, read and judged.

May import: the product, bench, tests.
"""
