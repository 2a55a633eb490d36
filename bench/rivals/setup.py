"""Makes the rivals' virtual environments; ``make peers`` runs it.

    feeder-bench peers-setup [NAME…] [--folder DIR]

Each is made in ``.peers/NAME`` and checked by imports. An existing one is left alone. When one
cannot be made, the reason is written to ``failed.txt`` in its folder, whose last line the bench
shows, and the others are still made. System packages are installed with apt as root; without them
an environment may still work.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError

from .catalogue import DEFAULT_FOLDER, ENVIRONMENTS
from .process import last_line

_STEP_TIMEOUT_S: Final = 1800.0
MARK: Final = "installed.txt"
FAILURE: Final = "failed.txt"


def make_environment(name: str, folder: Path) -> str | None:
    """Make ``folder``/NAME unless it exists; return why that failed, or None."""
    environment, path = ENVIRONMENTS[name], folder / name
    if (path / MARK).exists():
        return None
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    _install_system_packages(environment.system_packages)
    python = str(path / "bin" / "python")
    module = (sys.executable, "-P", "-m")
    pip = (*module, "pip", "--python", python, "--disable-pip-version-check", "-q")
    commands = [
        (*module, "venv", "--without-pip", str(path)),
        *((*pip, "install", *step) for step in environment.steps),
        (python, "-c", f"import {environment.check}"),
    ]
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    if environment.compiler:
        variables["CC"] = environment.compiler
    for command in commands:
        try:
            done = subprocess.run(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_STEP_TIMEOUT_S,
                check=False,
                text=True,
                errors="replace",
            )
            output, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired:
            output, status = f"not done within {_STEP_TIMEOUT_S:g} s", 1
        if status:
            # The line of pip's or Python's output that names the error, or else the last one.
            lines = [line.strip() for line in output.splitlines()]
            errors = [line for line in lines if re.search("^(ERROR|error):|Error: ", line)]
            reason = last_line("\n".join(errors or lines)) or f"status {status}"
            text = f"$ python {' '.join(command[1:])}\n{output}\n\n{reason}\n"
            (path / FAILURE).write_text(text, "utf-8", "backslashreplace")
            return reason
    (path / MARK).write_text("made by make peers\n", "utf-8")
    return None


def why_missing(name: str, folder: Path) -> str | None:
    """Return why environment ``name`` cannot be used, or None when it can."""
    if (folder / name / MARK).exists():
        return None
    failure = folder / name / FAILURE
    if failure.exists():
        return f"cannot be installed: {last_line(failure.read_text('utf-8', 'replace'))}"
    return "not installed: run `make peers`"


def _install_system_packages(packages: Sequence[str]) -> None:
    """Install missing packages with apt as root; otherwise print the command."""
    missing = []
    for package in packages if shutil.which("dpkg-query") else ():
        query = ("dpkg-query", "-W", "-f", "${Status}", package)
        done = subprocess.run(query, capture_output=True, check=False)
        if b" installed" not in done.stdout:
            missing.append(package)
    if missing and os.geteuid() != 0:
        print(f"peers: these may be needed first: sudo apt-get install {' '.join(missing)}")
    elif missing:
        print(f"peers: installing system packages: {' '.join(missing)}", flush=True)
        environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ("install", "-y", "-qq", "--no-install-recommends", *missing)
        for command in (("update", "-qq"), install):
            subprocess.run(
                ("apt-get", *command), env=environ, stdout=subprocess.DEVNULL, check=False
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)} (default: all)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="DIR",
        help="folder for the environments (default: .peers of the project)",
    )


def run(arguments: argparse.Namespace) -> str:
    """Make all environments, or the named ones; return a line if some could not be made."""
    for name in arguments.names:
        if name not in ENVIRONMENTS:
            raise ConfigError(
                f"there is no rival environment {name}: name one of {', '.join(ENVIRONMENTS)}"
            )
    failed = 0
    for name in arguments.names or ENVIRONMENTS:
        print(f"peers: {name}", end=" … ", flush=True)
        reason = make_environment(name, arguments.folder)
        print(reason or "installed", flush=True)
        failed += reason is not None
    return f"peers: {failed} cannot be installed; the table will show why\n" if failed else ""
