"""The host's disk cache of remote datasets, and the fetcher that fills it.

May import: errors, metrics, plan, process, dataset, store.
"""
