"""The files of a dataset: shards and manifest, written, read and proven.

May import: errors, plan, process, jpeg.
"""
