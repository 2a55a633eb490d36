"""Facts about a machine in, findings out: ``table`` lists them. Pure.

May import: nothing.
"""
