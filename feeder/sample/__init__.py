"""From a record to a row of a batch: the hot path, the decoded cache, the self-test.

May import: errors, plan, jpeg, dataset.
"""
