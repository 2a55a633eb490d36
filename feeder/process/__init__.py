"""What each process of ours needs of the system: start, end, signals, streams, files, log lines.

May import: errors, metrics.
"""
