"""The node process's state machine, driven by ``support.session_shell``.

May import: the product, bench, tests.
"""
