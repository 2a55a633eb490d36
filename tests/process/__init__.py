"""Commands as processes: streams, signals, locales, shortages.

May import: the product, bench, tests.
"""
