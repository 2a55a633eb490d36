"""Tests of feeder.repack. May import: the product, bench, tests."""
