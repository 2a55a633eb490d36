"""Feeder: packs image datasets and serves ready batches to training jobs.

Its packages are drawn in docs/architecture.md. Here are only ``errors``, ``metrics`` and ``remedies``,
for all, and the process of the ``feeder`` command.

May import: nothing.
"""

__version__ = "0.1.0"
