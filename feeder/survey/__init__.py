"""What a dataset holds: samples with equal sources, and the survey, one HTML page.

May import: errors, plan, process, jpeg, dataset.
"""
