"""Messages and slots: every one comes back equal, and bounds hold. No process, file or clock.

May import: the product, bench, tests.
"""
