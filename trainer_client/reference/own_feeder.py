"""The data and the feeder of the smoke recipe: made and started by the job, ended with it.

It runs the commands that a user would run: ``feeder-bench synthetic``, ``feeder pack`` and ``feeder
serve``. None of them outlives the job, not even after SIGKILL. Data that is complete is used again,
so a resumed job trains on the same images.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError
from feeder.installation import install_command, missing_packages
from feeder.process.child import child_environment
from feeder.process.path_text import path_to_text
from trainer_client.reference.job import Place, broadcast_text, in_rank_0
from trainer_client.reference.options import TrainingOptions

CLASSES: Final = 10
IMAGES: Final = {"train": 3000, "val": 600}
LONGER_SIDE_PX: Final = 192  # enough for crops of 64 pixels, in an eighth of the bytes
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 8.0  # the daemon promises 5
_POLL_S: Final = 0.05
_READY: Final = "feeder: ready, "
_MANIFEST: Final = "manifest.json"

_LAUNCH: Final = (
    "import runpy, sys; from feeder.process.child import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); module = sys.argv[2]; del sys.argv[1:3]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
"""PDEATHSIG, so that not even SIGKILL to the job leaves a process behind."""


@contextlib.contextmanager
def own_feeder(folder: Path, report: Callable[[str], None]) -> Iterator[str]:
    """Make the data in ``folder``/data, serve it, and give the endpoint; end the feeder after that.

    Raises ResourceError where parts of the daemon are not installed, and, with the last line of
    ``folder``/feeder.log, when a command fails.
    """
    missing = missing_packages()
    if missing:
        raise ResourceError(
            "the smoke recipe packs images and serves them, and the daemon's parts for that are "
            f"not installed in this environment: {', '.join(missing)}: "
            f"{install_command('daemon', 'client')}"
        )
    log = folder / "feeder.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise ResourceError(
            f"cannot write to {path_to_text(folder)} ({error.strerror}): name another --output"
        ) from error
    for number, name in enumerate(IMAGES):
        _make_dataset(folder / "data", name, number, log, report)
    with tempfile.TemporaryDirectory(prefix="feeder-smoke-") as sockets:
        endpoint = f"ipc://{sockets}/feeder"
        data = [text for name in IMAGES for text in ("--data", f"{name}={folder / 'data' / name}")]
        with _serving(["serve", *data, "--bind", endpoint], log):
            report("a feeder of this job serves them")
            yield endpoint


def serve_in_rank_0(
    options: TrainingOptions,
    place: Place,
    report: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> TrainingOptions:
    """Start the feeder in rank 0, until ``stack`` is closed; return options with its endpoint."""
    endpoints: list[str] = []

    def start() -> None:
        assert options.folder is not None, "checked by the options"
        endpoints.append(stack.enter_context(own_feeder(options.folder, report)))

    in_rank_0(place, start)
    endpoint = broadcast_text("".join(endpoints), place)
    return options.changed(
        endpoint=endpoint, dataset="train", val_dataset="val", has_own_feeder=True
    )


def _make_dataset(
    data: Path, name: str, seed: int, log: Path, report: Callable[[str], None]
) -> None:
    packed, images = data / name, data / f"{name}-images"
    if not (packed / _MANIFEST).exists():
        if not images.exists():
            report(f"drawing {IMAGES[name]:,} synthetic images")
            numbers = ["--images", IMAGES[name], "--classes", CLASSES, "--seed", seed]
            _run("feeder.bench", ["synthetic", images, *numbers], log)
        report("packing them")
        _run("feeder", ["pack", images, packed, "--max-side", LONGER_SIDE_PX], log)
    shutil.rmtree(images, ignore_errors=True)


def _run(module: str, arguments: list[object], log: Path) -> None:
    start = _size(log)
    process = _start(module, arguments, log)
    try:
        status = process.wait()
    finally:
        _stop(process)
    if status:
        raise _failure(module, arguments, status, log, start)


@contextlib.contextmanager
def _serving(arguments: list[object], log: Path) -> Iterator[None]:
    start = _size(log)
    process = _start("feeder", arguments, log)
    try:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while _READY not in _text_from(log, start):
            status = process.poll()
            if status is not None:
                raise _failure("feeder", arguments, status, log, start)
            if time.monotonic() > deadline_s:
                raise ResourceError(
                    f"`feeder serve` was not ready within {READY_TIMEOUT_S:g} s: see "
                    f"{path_to_text(log)}"
                )
            time.sleep(_POLL_S)
        yield
    finally:
        _stop(process)


def _start(module: str, arguments: list[object], log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _LAUNCH, str(os.getpid()), module, *map(str, arguments)]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the job, which ends the feeder in its turn
        )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process, at first with SIGTERM."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(
    module: str, arguments: list[object], status: int, log: Path, start: int
) -> ResourceError:
    name = "feeder-bench" if module == "feeder.bench" else module
    lines = _text_from(log, start).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return ResourceError(f"`{name} {arguments[0]}` ended with status {status}: {last}")


def _size(log: Path) -> int:
    return log.stat().st_size


def _text_from(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")
