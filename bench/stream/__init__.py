"""A daemon and its clients: rates, transports, keys, resuming, the ablation.

May import:
"""
