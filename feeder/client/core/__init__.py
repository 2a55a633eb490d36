"""The client's session as a state machine: requests, arrivals, failover. Pure.

May import: errors, plan, wire.
"""
