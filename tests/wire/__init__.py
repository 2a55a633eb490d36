"""Messages and slots: round trips and bounds. No process, file or clock.

May import: the product, bench, tests.
"""
