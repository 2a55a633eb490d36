"""Packed copies of sources, kept so that ``feeder serve`` packs each source only once.

May import: errors, process, store, dataset, source, source.location, pack.
"""
