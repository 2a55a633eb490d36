"""The other loaders, each in an environment of its own, on the same work.

May import:
"""
