"""Every kind of source: what is listed, with which labels, and what is refused.

May import: the product, bench, tests.
"""
