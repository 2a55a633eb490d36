"""What a batch is: order, recipe, crops, augmentations. No process, file or clock.

May import: the product, bench, tests.
"""
