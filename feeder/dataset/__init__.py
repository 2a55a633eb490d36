"""A dataset's files: shards and manifest, written, read and proven.

May import: errors, plan, process, jpeg.
"""
