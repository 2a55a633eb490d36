"""feeder-bench: how fast the sample path is here, measured side by side in one run.

What benches share lies here, each bench in a folder of its own.

May import: the product.
"""
