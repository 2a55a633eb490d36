"""From any source to a dataset; back again; and the check of every byte between.

May import: errors, plan, process, host, jpeg, dataset.
"""
