"""The client in real training frameworks, each in an environment of its own (make test-frameworks).

The tests run the scripts of docs/examples as users do. Their files are named check_*.py, so that
plain pytest does not collect them.

May import: the product, bench, tests.
"""
