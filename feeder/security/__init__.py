"""Keys, and why a connection with them does not come about.

May import: errors, wire, process.
"""
