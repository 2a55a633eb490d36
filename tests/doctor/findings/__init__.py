"""What is wrong with a machine, by its facts.

May import: the product, bench, tests.
"""
