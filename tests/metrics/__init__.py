"""What a process's state over time proves.

May import: the product, bench, tests.
"""
