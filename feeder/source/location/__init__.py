"""Where a source is: from what the user typed to files, and what these are by their first bytes.

May import: errors, process, source.label_files.
"""
