"""Tests of the metrics over HTTP.

May import: the product, bench, tests.
"""
