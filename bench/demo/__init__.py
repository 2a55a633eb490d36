"""Synthetic data, packed, served, and a ResNet trained on it: one command.

May import: the product, bench, bench.data.
"""
