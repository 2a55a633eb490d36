"""The reference job: its arithmetic, whole runs, kills and resumes.

May import: the product, bench, tests.
"""
