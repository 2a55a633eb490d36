"""Converts datasets of shard format 2 to the current format, without loss.

May import: errors, plan, process, jpeg, dataset, pack.
"""
