"""Which samples: what ``feeder select`` chooses, and what ``feeder diff`` finds to differ.

May import: errors, plan, process, store, dataset.
"""
