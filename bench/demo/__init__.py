"""Synthetic data → pack → serve → a ResNet trains → summary.

May import:
"""
