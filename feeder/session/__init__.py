"""The node process's state machine: events in, instructions out. Pure.

May import: errors, metrics, remedies, plan, wire.
"""
