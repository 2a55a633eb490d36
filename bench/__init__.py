"""feeder-bench: measures the sample path and the daemon, all contenders in one run.

Modules that several benches share are here; each bench has a folder of its own.

May import: the product.
"""
