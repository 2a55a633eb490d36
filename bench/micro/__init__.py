"""One core without a daemon: decoding, resizing, what each stage could reach.

May import:
"""
