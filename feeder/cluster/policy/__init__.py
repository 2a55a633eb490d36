"""Which host of a cluster runs which feeder: a state machine, without Ray, clock or I/O.

May import: process.
"""
