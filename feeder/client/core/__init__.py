"""A client without socket, thread or clock: what it asks of which node, what has come. Pure.

May import: errors, plan, wire.
"""
