"""The images that benches run on, given or synthetic.

May import: the product, bench.
"""
