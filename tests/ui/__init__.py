"""Checks that need Prometheus, Grafana's types or a terminal: `make test-ui`, outside `make test`.

May import: the product, bench, tests.
"""
