"""Each bench, run for real on a tiny set, and the demo.

May import: the product, bench, tests.
"""
