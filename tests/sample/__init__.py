"""Rows of batches against Pillow; the decoded cache; the self-test.

May import: the product, bench, tests.
"""
