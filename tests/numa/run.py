"""`make test-numa`, `make test-systemd`: boots a guest with two NUMA nodes, prints its report.

usage: python -m tests.numa.run [placement | unit]

placement (the default): `feeder serve` keeps processes and memory on their nodes, and sends the
same bytes as one unpinned worker. unit: systemd as process 1 runs feeder.service in its sandbox.

Exit status: 0 if all checks passed, 1 if not, 2 if this machine cannot run the guest.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.numa.root_image import PYTHON, RootImage, python_and_daemon
from tests.numa.unit_root import SYSTEMD, add_systemd
from tests.numa.virtual_machine import CannotRunError, boot, check_host, fetch_kernel

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".build" / "numa"
IMAGES = 61  # a prime: not divisible by batch size or number of shards
GUEST_DEADLINE_S = 480.0
CONSOLE_LINES = 40
GUESTS = {
    "placement": ("test-numa", "/init -- /dataset"),
    "unit": (
        "test-systemd",
        f"{SYSTEMD} systemd.show_status=1 systemd.journald.forward_to_console=1",
    ),
}
"""The make target of each guest, and its process 1 with the rest of the kernel's command line."""


def main(guest: str = "placement") -> int:
    """Boot one of GUESTS; return the exit status."""
    target, init = GUESTS[guest]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends qemu too
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="feeder-numa-") as folder:
        report, console = Path(folder) / "report", Path(folder) / "console"
        try:
            check_host()
            kernel = fetch_kernel(CACHE)
            root_image = build_root(Path(folder), guest)
        except CannotRunError as error:
            sys.stderr.write(f"{target}: cannot run here: {error}\n")
            return 2
        megabytes = root_image.stat().st_size / 1e6
        log(f"{target}: booting {kernel.name} on two emulated nodes, root of {megabytes:.0f} MB")
        files = {"console": console, "report": report}
        stopped = boot(kernel, root_image, init, **files, deadline_s=GUEST_DEADLINE_S)
        good = show_report(report) and not stopped
        if not good:
            log(f"{target}: the guest {stopped or 'ended'}; the end of its console:")
            text = re.sub(r"\x1b(\[[0-9;]*)?[A-Za-z]|\r", "", console.read_text(errors="replace"))
            lines = [line for line in text.splitlines() if line and "start running (" not in line]
            log("\n".join(lines[-CONSOLE_LINES:]))
    log(f"{target}: {'passed' if good else 'FAILED'} in {time.monotonic() - began_s:.0f} s")
    return 0 if good else 1


def show_report(report: Path) -> bool:
    """Print the guest's report; return whether its summary has passes and no failure."""
    text = report.read_text(errors="replace").replace("\r", "")
    sys.stdout.write(text)
    summary = re.search(r"^(\d+) passed, (\d+) failed$", text, re.MULTILINE)
    return summary is not None and int(summary[1]) > 0 and int(summary[2]) == 0


def build_root(folder: Path, guest: str) -> Path:
    """Pack the dataset and build the guest's root with it and process 1; return the archive."""
    source, dataset = folder / "source", folder / "dataset"
    run_python("bench", "synthetic", str(source), "--images", str(IMAGES), "--classes", "3")
    run_python("feeder", "pack", str(source), str(dataset))
    image = RootImage()
    if guest == "unit":
        add_systemd(image, PROJECT)
    else:
        code = (PROJECT / "tests/numa/guest_init.py").read_text()
        image.add_text("/init", f"#!{PYTHON}\n{code}", 0o755)
    python_and_daemon(image, PROJECT)
    image.add_tree(dataset, "/dataset")
    image.write(folder / "root.cpio")
    return folder / "root.cpio"


def log(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_python(module: str, *arguments: str) -> None:
    """Run one of the project's modules; print its output only if it fails."""
    answer = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=PROJECT, capture_output=True, text=True
    )
    if answer.returncode:
        raise SystemExit(f"{module} failed:\n{answer.stdout}{answer.stderr}")


if __name__ == "__main__":
    if not set(sys.argv[1:]) <= set(GUESTS) or len(sys.argv) > 2:
        sys.exit(f"usage: python -m tests.numa.run [{' | '.join(GUESTS)}]")
    sys.exit(main(*sys.argv[1:]))
