"""From the bytes of a JPEG to pixels, and back: re-coding, decoding, resizing; the part in C.

May import: errors, remedies, plan.
"""
