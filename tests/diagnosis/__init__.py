"""Verdicts: pure, from built reports; and of real daemons under conditions made on purpose.

May import: the product, bench, tests.
"""
