"""Checkpoints: the file, where it is kept, and how far the job is.

May import: errors, process, trainer_client.reference.results.
"""
