"""Training recipes: their keys, their files, and those that Feeder ships.

May import: errors, plan.
"""
