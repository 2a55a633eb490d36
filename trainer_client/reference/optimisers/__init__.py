"""Optimisers and averages of weights that torch does not have.

May import: nothing.
"""
