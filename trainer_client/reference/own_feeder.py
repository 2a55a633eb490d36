"""The data and the feeder of the smoke recipe: made and started by the job, ended with it.

It runs the commands that a user would run: ``feeder-bench synthetic``, ``feeder pack`` and ``feeder
serve``. None of them outlives the job, not even after SIGKILL. Data that is complete is used again,
so a resumed job trains on the same images.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError
from feeder.installation import install_command, missing_packages
from feeder.process.child import child_environment
from feeder.process.path_text import path_to_text
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.place import Place, broadcast_text, in_rank_0

CLASSES: Final = 10
IMAGES: Final = {"train": 3000, "val": 600}
LONGER_SIDE_PX: Final = 192  # enough for crops of 64 pixels, in an eighth of the bytes
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 8.0  # the daemon promises 5

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
    log, data = folder / "feeder.log", folder / "data"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise ResourceError(
            f"cannot write to {path_to_text(folder)} ({error.strerror}): name another --output"
        ) from error
    for seed, (name, count) in enumerate(IMAGES.items()):
        packed, images = data / name, data / f"{name}-images"
        if not (packed / "manifest.json").exists():
            if not images.exists():
                report(f"drawing {count:,} synthetic images")
                numbers = ["--images", count, "--classes", CLASSES, "--seed", seed]
                with _running("feeder.bench", ["synthetic", images, *numbers], log) as command:
                    command.wait_for(None)
            report("packing them")
            side = ["--max-side", LONGER_SIDE_PX]
            with _running("feeder", ["pack", images, packed, *side], log) as command:
                command.wait_for(None)
        shutil.rmtree(images, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="feeder-smoke-") as sockets:
        endpoint = f"ipc://{sockets}/feeder"
        names = [text for name in IMAGES for text in ("--data", f"{name}={data / name}")]
        with _running("feeder", ["serve", *names, "--bind", endpoint], log) as command:
            command.wait_for("feeder: ready, ")
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
    return replace(
        options, endpoint=endpoint, dataset="train", val_dataset="val", has_own_feeder=True
    )


@contextlib.contextmanager
def _running(module: str, arguments: list[object], log: Path) -> Iterator["_Command"]:
    """Start a command, which is ended after the body, at first with SIGTERM."""
    command = _Command(module, arguments, log)
    try:
        yield command
    finally:
        command.process.terminate()
        try:
            command.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            command.process.kill()
            command.process.wait()


class _Command:
    """A process that writes to the end of ``log``."""

    def __init__(self, module: str, arguments: list[object], log: Path) -> None:
        name = "feeder-bench" if module == "feeder.bench" else module
        self._name = f"{name} {arguments[0]}"
        self._log, self._start = log, log.stat().st_size
        command = [sys.executable, "-c", _LAUNCH, str(os.getpid()), module, *map(str, arguments)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the job, which ends the feeder in its turn
            )

    def wait_for(self, mark: str | None) -> None:
        """Wait until the output has ``mark``, or until the end; ResourceError if it fails."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while mark is None or mark not in self._output():
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.process.wait(None if mark is None else 0.05)
                if status or mark is not None:
                    lines = [line.strip() for line in self._output().split("\n") if line.strip()]
                    last = lines[-1] if lines else "it printed nothing"
                    raise ResourceError(f"`{self._name}` ended with status {status}: {last}")
                return
            if time.monotonic() > deadline_s:
                raise ResourceError(
                    f"`{self._name}` was not ready within {READY_TIMEOUT_S:g} s: see "
                    f"{path_to_text(self._log)}"
                )

    def _output(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._start)
            return file.read().decode("utf-8", "replace")
