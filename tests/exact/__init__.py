"""Feeder's decoder against TurboJPEG, byte by byte.

    make exact                                      40,000 crops, by every version
    make exact CROPS=1000000
    make exact DAMAGED=100000                       damaged JPEGs, packed and decoded
    python -m tests.exact --images FOLDER           real images from class folders of JPEGs

``windows`` decodes a window both ways; ``tests/jpeg`` uses it too. ``run`` draws images, also
damaged ones, and windows, and counts.

May import: the product, bench, tests.
"""
