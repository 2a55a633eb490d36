"""Tests of ``feeder.cluster``: its policy, and with real Ray in check_*.py (make test-cluster).

May import: the product, bench, tests.
"""
