"""Downloads Debian's cloud kernel (Ubuntu: the virtual one); boots it in qemu with two NUMA nodes.

Software emulation runs on any machine and in any container. apt downloads the kernel once into
.build/; it is not installed.
"""

import contextlib
import platform
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

QEMU = "qemu-system-x86_64"
CORES_PER_NODE = 2
MIB_PER_NODE = 1024

_KERNEL_PACKAGES = ("linux-image-cloud-amd64", "linux-image-virtual")
_STEP_DEADLINE_S = 180
_BOOT_SILENCE_S = 60.0  # of the console, until the report has a line


class CannotRunError(Exception):
    """Raised if this machine cannot run the guest: one line with what is missing and what to do."""


def check_host() -> None:
    """Raise CannotRunError unless this machine can run an x86-64 guest with its own Python."""
    if platform.machine() != "x86_64":
        raise CannotRunError(
            f"the guest runs this machine's Python and needs x86_64; this is {platform.machine()}"
        )
    if shutil.which(QEMU) is None:
        raise CannotRunError(f"{QEMU} is missing: apt-get install qemu-system-x86")


def fetch_kernel(folder: Path) -> Path:
    """Return a kernel image, downloaded into `folder` the first time."""
    if found := sorted(folder.glob("vmlinuz-*")):
        return found[-1]
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if shutil.which(tool) is None:
            raise CannotRunError(
                f"{tool} is missing; the kernel is downloaded from Debian or Ubuntu"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        package = _kernel_package()
        _run(["apt-get", "download", package], work, f"download {package}; run apt-get update?")
        (archive,) = Path(work).glob(f"{package}_*.deb")
        _run(["dpkg", "-x", archive.name, "unpacked"], work, f"unpack {archive.name}")
        (image,) = Path(work).glob("unpacked/boot/vmlinuz-*")
        return image.rename(folder / image.name)


def boot(
    kernel: Path,
    root_image: Path,
    init: str,
    *,
    console: Path,
    report: Path,
    deadline_s: float,
) -> str:
    """Run the guest until it powers off; return "", or what it did when it was killed.

    `init` is the path of process 1, with further options of the kernel's command line. The kernel's
    console goes to `console`, the guest's second serial line to `report`.
    """
    command = [QEMU, "-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35"]
    command += ["-accel", "tcg,thread=multi", "-cpu", "max", "-m", f"{2 * MIB_PER_NODE}M"]
    command += ["-smp", f"{2 * CORES_PER_NODE},sockets=2,cores={CORES_PER_NODE},threads=1"]
    for node in range(2):
        first = node * CORES_PER_NODE
        last = first + CORES_PER_NODE - 1
        command += ["-object", f"memory-backend-ram,id=memory{node},size={MIB_PER_NODE}M"]
        command += ["-numa", f"node,nodeid={node},cpus={first}-{last},memdev=memory{node}"]
    command += ["-numa", "dist,src=0,dst=1,val=21"]
    command += ["-serial", f"file:{console}", "-serial", f"file:{report}"]
    command += ["-kernel", str(kernel), "-initrd", str(root_image)]
    command += ["-append", f"console=ttyS0 panic=-1 rdinit={init}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=console.open("ab")) as qemu:
        try:
            return _watch(qemu, console, report, deadline_s)
        finally:
            qemu.kill()


def _watch(qemu: "subprocess.Popen[bytes]", console: Path, report: Path, deadline_s: float) -> str:
    began_s = printed_s = time.monotonic()
    printed = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            qemu.wait(0.5)
            return ""
        now_s = time.monotonic()
        if now_s - began_s > deadline_s:
            return f"had not ended after {deadline_s:.0f} s"
        has_booted = report.exists() and report.stat().st_size > 0
        if printed != (printed := console.stat().st_size):
            printed_s = now_s
        if not has_booted and now_s - printed_s > _BOOT_SILENCE_S:
            text = console.read_text(errors="replace")
            where = "process 1" if "as init process" in text else "the kernel" if text else "qemu"
            return f"did not boot: it printed nothing for {_BOOT_SILENCE_S:.0f} s, in {where}"


def _kernel_package() -> str:
    """Return the kernel package that the distribution's metapackage depends on."""
    for metapackage in _KERNEL_PACKAGES:
        answer = subprocess.run(
            ["apt-cache", "depends", metapackage], capture_output=True, text=True
        )
        if match := re.search(r"Depends: (linux-image-\d\S+)", answer.stdout):
            return match[1]
    raise CannotRunError(f"apt has none of {', '.join(_KERNEL_PACKAGES)}: run apt-get update")


def _run(command: list[str], folder: str, what: str) -> None:
    try:
        subprocess.run(
            command,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=_STEP_DEADLINE_S,
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotRunError(f"cannot {what} ({last})") from None
