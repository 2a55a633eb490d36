"""Pictures of what a bench found, from its JSON alone.

May import:
"""
