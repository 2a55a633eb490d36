"""Pictures of what a bench found, drawn from its report alone.

May import: errors, bench, bench.soak, bench.rivals.
"""
