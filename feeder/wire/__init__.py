"""What client and node process say, and where rows lie in a slot. Pure.

May import: errors, plan.
"""
