"""One command that packs and serves synthetic data and trains a ResNet on it.

May import: the product, bench, bench.data.
"""
