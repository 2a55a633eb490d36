"""Feeder: packs image datasets and serves ready batches to training jobs."""

__version__ = "0.1.0"
