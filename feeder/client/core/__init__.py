"""The client's session as a state machine: requests, arrivals, failover. Pure.

May import: errors, metrics, plan, wire.
"""
