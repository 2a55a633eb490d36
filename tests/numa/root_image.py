"""Builds the guest's root as an initramfs: files of this machine, most of them at their own paths.

So the interpreter finds its library, and the loader its libraries. The checkout and the virtual
environment are in PROJECT and PYTHON's folder whatever their paths are here, because the guest's
systemd mounts a /tmp of its own. Only what is added exists in the guest.

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

PROJECT = "/opt/project"
PYTHON = "/opt/python/bin/python"
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
_MODULES = (
    *("tests/__init__.py", "tests/support/__init__.py", "tests/support/raw_client.py"),
    *(
        f"bench/{name}.py"
        for name in ("__init__", "daemon", "footprint", "line_process", "machine")
    ),
)
"""Besides the packages feeder and tests.numa."""


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

    def add_tree(self, folder: Path, target: str = "") -> None:
        """Add a folder's files, except those that a daemon never imports (tests, headers)."""
        for where, folders, files in os.walk(folder):
            folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
            for name in files:
                path = Path(where) / name
                if path.suffix in _SKIPPED_SUFFIXES:
                    continue
                if target:
                    self.add_at(path, f"{target}/{path.relative_to(folder)}")
                else:
                    self.add(path)

    def add_at(self, source: Path | _Made, target: str) -> None:
        """Add a file or empty folder at another path, and its parents."""
        for folder in Path(target).parents:
            self._sources.setdefault(str(folder), _Made(stat.S_IFDIR, b""))
        self._sources[target] = source

    def add_text(self, target: str, text: str, mode: int = 0o644) -> None:
        self.add_at(_Made(stat.S_IFREG | mode, text.encode()), target)

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
        own = Path(sysconfig.get_path("platlib")).resolve()  # loaded by relative paths
        for library in set(re.findall(r"(?:=> |^\t)(/\S+) \(0x", answer, re.MULTILINE)):
            if not Path(library).resolve().is_relative_to(own):
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
    interpreter = Path(sys.executable).resolve()
    image.add(interpreter)
    image.add_at(_Made(stat.S_IFLNK | 0o777, os.fsencode(interpreter)), PYTHON)
    environment = Path(PYTHON).parents[1]
    image.add_text(f"{environment}/pyvenv.cfg", f"home = {interpreter.parent}\n")
    for kind in ("stdlib", "platstdlib"):
        image.add_tree(Path(sysconfig.get_path(kind, vars={"base": sys.base_prefix})))
    packages = Path(sysconfig.get_path("platlib"))
    target = environment / packages.relative_to(sys.prefix)
    for name in (*_DAEMON_PACKAGES, *_BUNDLED_LIBRARIES):
        entry = packages / name
        if entry.is_dir():
            image.add_tree(entry, f"{target}/{name}")
        elif entry.exists():
            image.add_at(entry, f"{target}/{name}")
    for entry in packages.glob("*.dist-info/METADATA"):
        if entry.parent.name.partition("-")[0].lower() in _METADATA:
            image.add_at(entry, f"{target}/{entry.parent.name}/METADATA")
    image.add_text(f"{target}/project.pth", f"{PROJECT}\n")
    for name in ("feeder", "tests/numa"):
        image.add_tree(project / name, f"{PROJECT}/{name}")
    for name in _MODULES:
        image.add_at(project / name, f"{PROJECT}/{name}")
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
