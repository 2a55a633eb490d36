"""What the machine offers, and where processes run on it: topology, placement, memory.

May import: errors, process.
"""
