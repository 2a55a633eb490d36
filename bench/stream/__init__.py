"""A daemon and its clients: rates by transport, keys, resuming, the ablation.

May import: the product, bench, bench.data.
"""
