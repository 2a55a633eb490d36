"""JPEG bytes to pixels: lossless re-coding, decoding, resizing; the C extension.

May import: errors, installation, plan.
"""
