"""The sample path, from a record to its row in a batch; the decoded cache; the self-test.

May import: errors, plan, jpeg, dataset.
"""
