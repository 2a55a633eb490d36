"""Converts datasets of shard format 2 into today's format, without loss.

May import: errors, plan, process, jpeg, dataset, pack.
"""
