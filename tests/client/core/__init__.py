"""The client's state machine, driven by ``support.client_shell`` and a simulated ``fleet``.

May import: the product, bench, tests.
"""
