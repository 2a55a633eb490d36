"""All tests, in folders named after what they test; here: imports, installation, set-up.

May import: the product, bench, tests.
"""
