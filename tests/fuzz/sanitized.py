"""Feeder's C parts built with AddressSanitizer and UndefinedBehaviorSanitizer, into build/fuzz.

Their scratch memory then has exactly the size that is asked for: see ``native/scratch.c``.
"""

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_FOLDER = REPOSITORY / "build" / "fuzz"
_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
_FLAGS += ["-g", "-O1", "-DFEEDER_EXACT_SCRATCH"]
_ASAN_OPTIONS = {
    "detect_leaks": "0",  # Python frees much only at exit; the batch measures growth instead
    "max_allocation_size_mb": "2048",
    "allocator_may_return_null": "1",
    "quarantine_size_mb": "4",
    "handle_segv": "1",
    "abort_on_error": "1",
    "disable_coredump": "1",
    "use_sigaltstack": "0",
}
OPTIONS = {
    "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in _ASAN_OPTIONS.items()),
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
}
"""The environment of a sanitized program."""


@dataclass(frozen=True, slots=True)
class Build:
    """The extension and environment for a batch; without an extension it uses the installed one."""

    extension: str
    environment: dict[str, str]
    reason: str
    """A description, for the head of the table."""


def plain() -> Build:
    """Return the build that is installed."""
    return Build("", {}, "the installed C parts, without sanitizers")


def build() -> Build:
    """Return the sanitized build, cached in build/fuzz; the plain one if it cannot be built."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return _without("there is no gcc")
    runtimes = [_runtime(compiler, name) for name in ("libasan.so", "libubsan.so")]
    if None in runtimes:
        return _without("this gcc has no libasan or libubsan")
    module = _module()
    sources = [REPOSITORY / name for name in module["sources"]]
    depends = [REPOSITORY / name for name in module["depends"]]
    flags = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    libraries = [f"-l{name}" for name in module["libraries"]]
    name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    try:
        extension = _compile(compiler, name, sources, depends, [*flags, *libraries])
    except RuntimeError as error:
        return _without(str(error))
    environment = {
        **OPTIONS,
        "LD_PRELOAD": " ".join(path for path in runtimes if path),
        "PYTHONMALLOC": "malloc",  # gives every bytes object redzones
    }
    return Build(str(extension), environment, "C parts with AddressSanitizer and UBSan")


def build_program(name: str, sources: Iterable[str], headers: Iterable[str], *macros: str) -> Path:
    """Return a sanitized program of C files, given from the repository's root on.

    ``macros`` are defined, and the headers of ``feeder/jpeg/native`` are on its path. Raises
    RuntimeError where it cannot be built.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("there is no gcc")
    depends = [REPOSITORY / path for path in (*headers, *_module()["depends"])]
    options = [f"-I{REPOSITORY / 'feeder/jpeg/native'}", "-pthread", *(f"-D{m}" for m in macros)]
    return _compile(compiler, name, [REPOSITORY / path for path in sources], depends, options)


def _module() -> dict[str, Any]:
    """Return the description of the decoder's extension in pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    modules = project["tool"]["setuptools"]["ext-modules"]
    (module,) = [each for each in modules if each["name"] == "feeder.jpeg._native"]
    return dict(module)


def _compile(
    compiler: str, name: str, sources: list[Path], depends: list[Path], options: list[str]
) -> Path:
    """Return what the compiler makes of the sources, cached; RuntimeError if it cannot."""
    flags = [*_module()["extra-compile-args"], *_FLAGS, *options]
    inputs = b"".join(path.read_bytes() for path in (*sources, *depends)) + repr(flags).encode()
    folder = _FOLDER / hashlib.blake2b(inputs, digest_size=8).hexdigest()
    made = folder / name
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        # Options after the sources: the linker takes libraries from what follows their users.
        command = [compiler, *map(str, sources), *flags, "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError("the build failed: " + (done.stderr.splitlines() or ["?"])[-1])
        unfinished.replace(made)
    return made


def _without(reason: str) -> Build:
    return Build("", {}, f"C parts WITHOUT sanitizers: {reason}")


def _runtime(compiler: str, name: str) -> str | None:
    command = [compiler, f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return os.path.realpath(path) if os.path.isabs(path) else None
