"""Builds the guest's root as an initramfs: files of this machine at their own paths.

Because paths are the same, the interpreter finds its library, the virtual environment its packages
and the loader its libraries. Only what is added exists in the guest.

Source of the format: Documentation/driver-api/early-userspace/buffer-format.rst (newc).
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_TRAILER = "TRAILER!!!"
_SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip"}
_SKIPPED_FOLDERS |= {"site-packages", "dist-packages", "f2py"}
_SKIPPED_SUFFIXES = {".a", ".pyi", ".h", ".c", ".exe"}
_DAEMON_PACKAGES = ("numpy", "msgspec", "zmq", "xxhash", "psutil", "PIL", "turbojpeg.py")
_BUNDLED_LIBRARIES = ("numpy.libs", "pyzmq.libs")
_METADATA = (
    "numpy",
    "msgspec",
    "pyzmq",
    "xxhash",
    "psutil",
    "pillow_simd",
    "pyturbojpeg",
    "feeder",
)


@dataclass(frozen=True, slots=True)
class _Made:
    """A generated file, folder or link."""

    mode: int
    content: bytes


class RootImage:
    """Collects files of this machine and generated ones, then writes them as a newc archive."""

    def __init__(self) -> None:
        self._sources: dict[str, Path | _Made] = {}  # by path in the guest

    def add(self, path: Path) -> None:
        """Add a file, a link with its target, or an empty folder, with the parents."""
        current = Path("/")
        for position, name in enumerate(path.parts[1:]):
            current = current / name
            if current.is_symlink():
                target = Path(os.readlink(current))
                self._sources[str(current)] = _Made(stat.S_IFLNK | 0o777, os.fsencode(target))
                rest = path.parts[position + 2 :]
                self.add(Path(os.path.normpath(current.parent / target)).joinpath(*rest))
                return
            self._sources[str(current)] = current

    def add_tree(self, folder: Path) -> None:
        """Add a folder's files, except those that a daemon never imports (tests, headers)."""
        for where, folders, files in os.walk(folder):
            folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
            for name in files:
                if not _SKIPPED_SUFFIXES & {Path(name).suffix}:
                    self.add(Path(where) / name)

    def add_at(self, source: Path, target: str) -> None:
        """Add a file or empty folder at another path, whose parent must exist in the guest."""
        self._sources[target] = source

    def add_text(self, target: str, text: str, mode: int = 0o644) -> None:
        """Add a file with this text, and its parents."""
        for folder in Path(target).parents:
            self._sources.setdefault(str(folder), _Made(stat.S_IFDIR, b""))
        self._sources[target] = _Made(stat.S_IFREG | mode, text.encode())

    def add_shared_libraries(self) -> None:
        """Add the libraries that the collected programs and libraries load, as ldd reports them."""
        objects = [
            str(source)
            for source in self._sources.values()
            if isinstance(source, Path) and source.is_file() and _is_elf(source)
        ]
        answer = subprocess.run(
            ["ldd", *objects], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ).stdout
        for library in set(re.findall(r"(?:=> |^\t)(/\S+) \(0x", answer, re.MULTILINE)):
            self.add(Path(library))

    def write(self, path: Path) -> None:
        """Write the archive, folders before their content."""
        with path.open("wb") as archive:
            for number, (name, source) in enumerate(sorted(self._sources.items())):
                if name != "/":
                    _write_entry(archive, number, name.lstrip("/"), source)
            _write_entry(archive, 0, _TRAILER, _Made(0, b""))
            archive.write(bytes(-archive.tell() % 512))


def python_and_daemon(image: RootImage, project: Path) -> None:
    """Add this interpreter, its library, the daemon's packages and the project's own code."""
    image.add(Path(sys.executable))
    image.add(Path(sys.prefix) / "pyvenv.cfg")
    for kind in ("stdlib", "platstdlib"):
        image.add_tree(Path(sysconfig.get_path(kind, vars={"base": sys.base_prefix})))
    packages = Path(sysconfig.get_path("platlib"))
    for name in (*_DAEMON_PACKAGES, *_BUNDLED_LIBRARIES):
        entry = packages / name
        if entry.is_dir():
            image.add_tree(entry)
        elif entry.exists():
            image.add(entry)
    for entry in packages.glob("*.dist-info/METADATA"):
        if entry.parent.name.partition("-")[0].lower() in _METADATA:
            image.add(entry)
    image.add_text(str(packages / "project.pth"), f"{project}\n")
    image.add_tree(project / "feeder")
    for name in ("__init__.py", "support/__init__.py", "support/wire_client.py"):
        image.add(project / "tests" / name)
    image.add_tree(project / "tests/numa")
    for library in _turbojpeg():
        image.add(library)
    image.add_shared_libraries()
    for folder in ("/dev", "/proc", "/sys", "/tmp", "/run"):
        image.add(Path(folder))


def _turbojpeg() -> Iterator[Path]:
    """Yield the library that PyTurboJPEG opens by path without ldconfig, as in the guest."""
    import turbojpeg

    yield from (Path(p) for p in turbojpeg.DEFAULT_LIB_PATHS["Linux"] if Path(p).exists())


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _write_entry(archive: BinaryIO, number: int, name: str, source: Path | _Made) -> None:
    """Write one newc header, name and content; a link's content is its target."""
    if isinstance(source, _Made):
        mode, mtime, size = source.mode, 0, len(source.content)
    else:
        status = source.stat()
        mode, mtime = status.st_mode, int(status.st_mtime)
        size = status.st_size if stat.S_ISREG(mode) else 0
    if stat.S_ISDIR(mode):
        mode = (
            stat.S_IFDIR | 0o755
        )  # the interpreter may be in a home that other users cannot enter
    encoded = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, mtime, size, 0, 0, 0, 0, len(encoded), 0)
    archive.write(b"070701" + b"".join(b"%08x" % field for field in fields) + encoded)
    archive.write(bytes(-archive.tell() % 4))
    if isinstance(source, _Made):
        archive.write(source.content)
    elif size:
        with source.open("rb") as file:
            shutil.copyfileobj(file, archive)
    archive.write(bytes(-archive.tell() % 4))
