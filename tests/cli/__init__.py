"""What commands print and draw.

May import: the product, bench, tests.
"""
