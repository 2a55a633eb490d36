"""Tests on two NUMA nodes: the daemon runs in a qemu guest under software emulation.

run.py              on the host: packs a small dataset, boots a guest, prints its report
root_image.py       the guest's root: this Python, the daemon's packages, the libraries they need
virtual_machine.py  Debian's cloud kernel and qemu with two memory nodes of two cores each

guest_init.py       process 1 of the guest `placement`: mounts, loopback, the check, power off
guest_check.py      runs `feeder serve`; checks CPUs, memory placement and the bytes it sends

unit_root.py        the guest `unit`: systemd as process 1 with our feeder.service
unit_check.py       checks that the service is up, sandboxed and placed, and that it stops

May import: the product, bench, tests.
"""
