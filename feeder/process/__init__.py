"""What each of our processes needs from the system: start and end, streams, files, log lines.

May import: errors, metrics, remedies.
"""
