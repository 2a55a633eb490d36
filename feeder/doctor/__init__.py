"""``feeder doctor``: the machine as Feeder sees it, and what is wrong with it.

    read_machine    /proc and /sys below a root, and this process's libraries → Machine
    findings        Machine → findings, the worst first
    report          both as text, as JSON, and as the warnings that ``feeder serve`` logs

May import: errors, installation, process, host, jpeg, security, sample.
"""
