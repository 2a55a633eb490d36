"""What a batch is: the order of an epoch, the recipe, crops, augmentations, packings. Pure.

May import: errors.
"""
