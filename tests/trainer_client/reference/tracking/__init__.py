"""Where the reference job reports to: its files, the terminal, the picture, the choice of them.

May import: the product, bench, tests.
"""
