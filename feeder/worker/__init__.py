"""The process that fills chunks of batches into slots.

May import: errors, plan, wire, process, jpeg, dataset, sample.
"""
