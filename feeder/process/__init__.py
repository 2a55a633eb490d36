"""What every process of ours needs of the system: its start and end, streams, files, log lines.

May import: errors, metrics, remedies.
"""
