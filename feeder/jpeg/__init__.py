"""From JPEG bytes to pixels: re-coding into tiles, decoding crops, resizing; the part in C.

May import: errors, plan.
"""
