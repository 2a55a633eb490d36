"""Process 1 of the guest: mounts /proc, /sys and /dev, runs the check, powers off.

The guest powers off even after an error: the host waits for qemu to exit and reads the report.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import traceback
from pathlib import Path

REPORT = "/dev/ttyS1"
"""The serial line whose other end is the host's report file; the kernel's console is ttyS0."""

_MOUNTS = (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"))
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h
_RB_POWER_OFF = 0x4321FEDC  # linux/reboot.h


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for kind, where in _MOUNTS:
            Path(where).mkdir(exist_ok=True)
            if libc.mount(kind.encode(), where.encode(), kind.encode(), 0, None) != 0:
                raise OSError(ctypes.get_errno(), f"mounting {where}")
        _loopback_up()
        with open(REPORT, "w") as report:
            print("process 1 starts the check", file=report, flush=True)
            status = subprocess.run(
                [sys.executable, "-m", "tests.numa.guest_check", *sys.argv[1:]],
                stdout=report,
                stderr=report,
                env={"PATH": "/usr/bin:/bin"},
            )
            report.write(f"guest check ended with status {status.returncode}\n")
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()  # to the console, which the host prints
        sys.stderr.flush()
        os.sync()
        libc.reboot(_RB_POWER_OFF)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack_from("16sH", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    main()
