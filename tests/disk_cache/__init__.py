"""Tests of the disk cache. May import: the product, bench, tests."""
