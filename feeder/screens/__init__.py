"""What ``feeder status`` and ``feeder top`` draw, from a host's report, for a terminal of any width.

May import: errors, metrics, diagnosis.
"""
