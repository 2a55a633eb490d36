"""What a daemon measures of itself: one record for each subject, from the count to the screen.

    fields      declarations: what a field counts, which metric it is; adding up, growth
    records     the records of a node process, its workers, clients, jobs and cache
    counters    those of a node process's parts: sessions, socket, claims, workers, log
    hangs       judges a process that makes no progress: it is stopped, loops, waits
    figures     numbers as text: rates, shares, sizes, times
    report      all node processes of a host, now and some seconds ago, with the machine's load

A new counter takes two places: its line in ``records`` or ``counters``, and where it is counted.
Node processes send their record to the supervisor twice a second, which is also their heartbeat.
Pure.

May import: nothing.
"""
