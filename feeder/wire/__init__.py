"""What is said: the messages between client and node process, and where rows lie in a slot. Pure.

May import: errors, plan.
"""
