"""Messages between client and node process, and the layout of slots. Pure.

May import: errors, metrics, plan.
"""
