"""What status and top draw, for any report and any terminal.

May import: the product, bench, tests.
"""
