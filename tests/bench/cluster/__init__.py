"""The model of many hosts, and its command line.

May import: the product, bench, tests.
"""
