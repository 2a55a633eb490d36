"""Gets Debian's cloud kernel (Ubuntu: the virtual one) and runs it in qemu with two NUMA nodes.

Software emulation, so that it runs on any machine, in any container. The kernel is downloaded
once by apt into .build/, never installed.
"""

import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

QEMU = "qemu-system-x86_64"
CORES_PER_NODE = 2
MIB_PER_NODE = 1024

_KERNEL_PACKAGES = ("linux-image-cloud-amd64", "linux-image-virtual")
_STEP_DEADLINE_S = 180


class CannotRunError(Exception):
    """Raised with one line that says what this machine lacks for the test, and what to do."""


def check_host() -> None:
    """Raise CannotRunError where no x86-64 guest with this machine's Python can be run here."""
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
            raise CannotRunError(f"{tool} is missing, and the kernel comes from Debian or Ubuntu")
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
) -> bool:
    """Run the guest until it powers off; False where it had to be ended at the deadline.

    `init` is process 1's path, and what else the kernel's command line should say. The kernel's
    console, and the report, which the guest writes to its second serial line, become files.
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
    command += ["-append", f"console=ttyS0 quiet panic=-1 rdinit={init}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=console.open("ab")) as qemu:
        try:
            qemu.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            qemu.kill()
    return True


def _kernel_package() -> str:
    """Return the package with the image that the distribution's metapackage asks for."""
    for metapackage in _KERNEL_PACKAGES:
        answer = subprocess.run(
            ["apt-cache", "depends", metapackage], capture_output=True, text=True
        )
        if match := re.search(r"Depends: (linux-image-\d\S+)", answer.stdout):
            return match[1]
    raise CannotRunError(f"apt knows none of {', '.join(_KERNEL_PACKAGES)}: run apt-get update")


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
