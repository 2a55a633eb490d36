"""A client without socket, thread or clock: which node is asked for what, what has come. Pure.

May import: errors, plan, wire.
"""
