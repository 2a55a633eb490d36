"""The parts of a node process, and the daemon under misuse.

May import: the product, bench, tests.
"""
