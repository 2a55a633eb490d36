"""Operating system services for every Feeder process: start and exit, streams, files, logging.

May import: errors, installation, metrics.
"""
