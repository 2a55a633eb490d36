"""A node process's sessions as a state machine: events in, instructions out. Pure.

May import: errors, metrics, remedies, plan, wire.
"""
