"""Which host of a cluster runs which feeder: events in, instructions out. Pure, and without Ray.

May import: process.
"""
