"""What holds a daemon back: rates from two snapshots, causes from rates, one verdict.

    interval    what happened between the two snapshots of a report, as rates and shares
    verdict     the first condition that holds, with its evidence and the next step

Everything that shows rates (status, top, metrics, the log) takes them from ``interval``, so that
they agree. Pure.

May import: metrics.
"""
