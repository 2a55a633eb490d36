"""The test on two real NUMA nodes: a qemu guest in software emulation runs the daemon.

run.py              on the host: packs a small dataset, boots a guest, shows its report
root_image.py       the guest's root: this Python, the daemon's packages, the libraries they need
virtual_machine.py  Debian's cloud kernel and qemu with two memory nodes of two cores each

guest_init.py       process 1 of the guest `placement`: mounts, loopback, the check, power off
guest_check.py      starts `feeder serve`: where does it run, keep its memory, what does it send?
crossed_process.py  a process on one node's cores and the other's memory, for the check to look at

unit_root.py        the guest `unit`: systemd as process 1 with our feeder.service
unit_check.py       is the service up, closed in, placed, and does it stop?

May import: the product, bench, tests.
"""
