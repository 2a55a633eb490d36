"""``feeder doctor``: the machine as Feeder sees it, and what is wrong with it.

    read_machine    /proc and /sys below a root, and this process's libraries → Machine
    findings/       Machine → findings, the worst first; pure
    fact_rows       the facts as rows
    report          both as text or JSON
    worst           the warnings that ``feeder serve`` logs when it starts

May import: errors, installation, process, host, jpeg, security, sample.
"""
