"""The supervisor of the node processes, and its configuration.

May import:
"""
