"""Feeder: packs image datasets and serves ready batches to training jobs.

docs/architecture.md draws its packages. The modules here, ``errors``, ``metrics`` and ``remedies``,
serve all of them; ``__main__`` is the process of the ``feeder`` command.

May import: nothing.
"""

__version__ = "0.1.0"
