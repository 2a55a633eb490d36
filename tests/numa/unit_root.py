"""Adds systemd and the project's unit to the guest's root: systemd is process 1 there.

The unit is the shipped one, byte for byte; the files that it names are put at their paths.
"""

from pathlib import Path

from tests.numa.root_image import PYTHON, RootImage
from tests.numa.virtual_machine import CannotRunError

SYSTEMD = Path("/lib/systemd/systemd")

_PROGRAMS = (
    "/bin/systemctl",
    "/bin/journalctl",
    "/usr/bin/systemd-tmpfiles",
    "/bin/mount",
    "/bin/umount",
)
_LOADED_WHEN_NEEDED = ("libbpf.so.1", "libbpf.so.0", "libnss_systemd.so.2")
_FEEDER = """\
#!{python}
import sys
from feeder.__main__ import start
sys.exit(start())
"""
_BOOTED = """\
[Unit]
Before=feeder.service
[Service]
Type=oneshot
ExecStart={python} -c "print('systemd starts the units')"
StandardOutput=file:/dev/ttyS1
"""
_CHECK = """\
[Unit]
After=feeder.service
[Service]
Type=oneshot
ExecStart={python} -m tests.numa.unit_check
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/ttyS1
ExecStopPost=/bin/systemctl poweroff --force
"""
_TARGET = """\
[Unit]
Requires=basic.target
After=basic.target
Wants=booted.service feeder.service check.service
"""


def add_systemd(image: RootImage, project: Path) -> None:
    """Add systemd, the unit with its configuration and program, and a service for the check."""
    if not SYSTEMD.exists():
        raise CannotRunError(f"{SYSTEMD} is missing: apt-get install systemd")
    for name in ("/var/log", "/var/lib", "/var/tmp", "/home", "/root", *_PROGRAMS):
        image.add(Path(name))
    image.add(SYSTEMD)
    image.add_tree(SYSTEMD.parent.resolve())
    image.add_tree(Path("/usr/lib/tmpfiles.d"))
    for library in _LOADED_WHEN_NEEDED:
        for folder in SYSTEMD.resolve().parents[1].glob("*-linux-gnu"):
            if (folder / library).exists():
                image.add(folder / library)
    image.add_text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    image.add_text("/etc/group", "root:x:0:\n")
    image.add_text("/etc/nsswitch.conf", "passwd: files systemd\ngroup: files systemd\n")
    image.add_text("/etc/machine-id", "")
    units = "/etc/systemd/system"
    image.add_text(f"{units}/default.target", _TARGET)
    image.add_text(f"{units}/booted.service", _BOOTED.format(python=PYTHON))
    image.add_text(f"{units}/check.service", _CHECK.format(python=PYTHON))
    image.add_at(project / "systemd/feeder.service", f"{units}/feeder.service")
    image.add_text("/opt/feeder/bin/feeder", _FEEDER.format(python=PYTHON), 0o755)
    endpoints = '"tcp://127.0.0.1:5555", "ipc:///run/feeder/feeder"'
    shipped = (project / "systemd/feeder.toml").read_text()
    configured = shipped.replace('bind = ["tcp://127.0.0.1:5555"]', f"bind = [{endpoints}]")
    assert configured != shipped, "feeder.toml binds another endpoint than expected here"
    image.add_text("/etc/feeder/feeder.toml", f'{configured}set = "/dataset"\n')
