"""Pictures of a bench's results, drawn from its report alone.

May import: errors, process, bench, bench.cluster, bench.micro, bench.rivals, bench.stream.
"""
