"""What ``feeder pack`` reads: a module for each kind of source, behind one interface.

May import: errors, plan, process.
"""
