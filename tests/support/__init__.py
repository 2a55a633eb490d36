"""What tests share: daemons, made-up nodes, clocks, images, machines. No test lies here.

May import: the product, bench, tests.
"""
