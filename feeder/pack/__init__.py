"""Packs sources into datasets, unpacks and verifies datasets.

May import: errors, plan, process, host, jpeg, dataset, source, source.label_files,
source.location, convert, survey.
"""
