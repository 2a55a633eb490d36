"""The batch script of docs/slurm on a real Slurm: `make test-slurm`.

May import: the product, bench, tests.
"""
