"""Keys, and the reasons why a handshake with them fails.

May import: errors, wire, process.
"""
