"""The host's disk cache of remote datasets, and the fetcher that fills it.

May import: errors, metrics, plan, wire, process, security, client, client.core, dataset, store.
"""
