"""The definition of a batch: order, recipe, crops, augmentations. No daemon and no clock.

May import: the product, bench, tests.
"""
