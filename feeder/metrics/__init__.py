"""What a daemon measures of itself, as values: counters, histograms, snapshots, the host's report.

    counters    plain integers that grow in place, by reason where there are several
    histogram   counts of durations in fixed buckets
    snapshot    a node process at one time: its counters, workers, clients, slots
    hangs       judges a process that makes no progress: it is stopped, loops, waits
    figures     numbers as text: rates, shares, sizes, times
    report      all node processes of a host, now and some seconds ago, with the machine's load

Node processes send a snapshot to the supervisor twice a second, which is also their heartbeat.
Pure.

May import: nothing.
"""
