"""Where a source is: from what the user typed to files and folders, and how these are read.

May import: errors, process, store.
"""
