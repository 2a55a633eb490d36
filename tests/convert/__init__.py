"""Images of every format become tiled JPEGs, with and without loss.

May import: the product, bench, tests.
"""
