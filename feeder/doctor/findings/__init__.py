"""Facts about a machine in, findings out. Pure.

May import: nothing.
"""
