"""Random faults under training clients: is a batch lost, repeated or different?

May import: the product, bench, bench.data.
"""
