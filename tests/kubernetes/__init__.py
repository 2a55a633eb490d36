"""The manifests of docs/kubernetes, and dns:// as a client in a pod has it.

May import: the product, bench, tests.
"""
