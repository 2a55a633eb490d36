"""The files of a dataset, shards and manifest: written, read and verified.

May import: errors, plan, process, jpeg, store.
"""
