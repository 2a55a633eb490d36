"""Feeder's C parts built with AddressSanitizer and UndefinedBehaviorSanitizer, into build/fuzz.

Their scratch memory then has exactly the size that is asked for: see ``native/scratch.c``.
"""

import hashlib
import os
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterable, Sequence
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
    module = _module()
    flags = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    libraries = [f"-l{name}" for name in module["libraries"]]
    name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    try:
        runtimes = " ".join(_runtime(name) for name in ("libasan.so", "libubsan.so"))
        extension = _compile(name, module["sources"], (), [*flags, *libraries])
    except RuntimeError as error:
        return Build("", {}, f"C parts WITHOUT sanitizers: {error}")
    # Python's malloc would give no redzones to bytes objects.
    environment = {**OPTIONS, "LD_PRELOAD": runtimes, "PYTHONMALLOC": "malloc"}
    return Build(str(extension), environment, "C parts with AddressSanitizer and UBSan")


def build_program(name: str, sources: Iterable[str], headers: Iterable[str], *macros: str) -> Path:
    """Return a sanitized program of C files, given from the repository's root on.

    ``macros`` are defined, and the headers of ``feeder/jpeg/native`` are on its path. Raises
    RuntimeError where it cannot be built.
    """
    options = [f"-I{REPOSITORY / 'feeder/jpeg/native'}", "-pthread", *(f"-D{m}" for m in macros)]
    return _compile(name, sources, headers, options)


def _module() -> dict[str, Any]:
    """Return the description of the decoder's extension in pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    modules = project["tool"]["setuptools"]["ext-modules"]
    (module,) = [each for each in modules if each["name"] == "feeder.jpeg._native"]
    return dict(module)


def _compile(
    name: str, sources: Iterable[str], headers: Iterable[str], options: Sequence[str]
) -> Path:
    """Return what gcc makes of the sources, cached; RuntimeError if it cannot."""
    module = _module()
    flags = [*module["extra-compile-args"], *_FLAGS, *options]
    paths = [str(REPOSITORY / path) for path in sources]
    depends = [*paths, *(REPOSITORY / path for path in (*headers, *module["depends"]))]
    inputs = b"".join(Path(path).read_bytes() for path in depends) + repr(flags).encode()
    folder = _FOLDER / hashlib.blake2b(inputs, digest_size=8).hexdigest()
    made = folder / name
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        # Options after the sources: the linker takes libraries from what follows their users.
        _run_gcc(*paths, *flags, "-o", str(unfinished))
        unfinished.replace(made)
    return made


def _runtime(name: str) -> str:
    path = _run_gcc(f"-print-file-name={name}").strip()
    if not os.path.isabs(path):
        raise RuntimeError(f"this gcc has no {name}")
    return os.path.realpath(path)


def _run_gcc(*arguments: str) -> str:
    """Return what gcc prints."""
    try:
        done = subprocess.run(["gcc", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("there is no gcc") from None
    if done.returncode != 0:
        raise RuntimeError("the build failed: " + (done.stderr.splitlines() or ["?"])[-1])
    return done.stdout
