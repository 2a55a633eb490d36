"""What the machine offers, and where processes run on it.

May import: errors, metrics, process.
"""
