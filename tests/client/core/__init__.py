"""The client's state machine, driven by ``support.client_shell`` and ``support.fleet``.

May import: the product, bench, tests.
"""
