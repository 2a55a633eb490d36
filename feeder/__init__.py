"""Feeder: packs image datasets and serves ready batches to training jobs.

docs/architecture.md draws its packages. Here are only ``errors``, ``metrics`` and ``remedies``, for
all of them, and the process of the ``feeder`` command.

May import: nothing.
"""

__version__ = "0.1.0"
