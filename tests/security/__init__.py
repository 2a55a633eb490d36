"""Keys, handshakes, and a real daemon that asks for keys.

May import: the product, bench, tests.
"""
