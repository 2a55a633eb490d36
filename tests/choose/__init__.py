"""Which samples: what ``feeder select`` chooses, and what ``feeder diff`` finds.

May import: the product, bench, tests.
"""
