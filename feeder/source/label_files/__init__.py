"""Files of labels that lie beside images: CSV, JSON and JSONL.

May import: errors, plan, process, source.location.
"""
