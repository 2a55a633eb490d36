"""Random faults while clients train: is a batch lost, repeated or different?

May import: the product, bench, bench.data.
"""
