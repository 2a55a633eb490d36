"""Training on many ranks: distributed batch norm, and how gradients are reduced.

May import: errors.
"""
