"""From any source to a dataset and back, and the check of every byte of one.

May import: errors, plan, process, host, jpeg, dataset.
"""
