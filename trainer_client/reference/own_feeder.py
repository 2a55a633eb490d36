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
from feeder.process.child import child_environment, wait_for_exit
from feeder.process.output_file import explain_write_errors
from feeder.process.path_text import path_to_text
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.place import Place, in_rank_0

CLASSES: Final = 10
IMAGES: Final = {"train": 3000, "val": 600}
LONGER_SIDE_PX: Final = 192  # enough for crops of 64 pixels, in an eighth of the bytes
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 8.0  # the daemon promises 5

# PDEATHSIG, so that not even SIGKILL to the job leaves a process behind.
_LAUNCH: Final = (
    "import runpy, sys; from feeder.process.child import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); module = sys.argv[2]; del sys.argv[1:3]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


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
    with explain_write_errors(f"to {path_to_text(folder)}", "name another --output"):
        folder.mkdir(parents=True, exist_ok=True)
        log.touch()
    for seed, (name, count) in enumerate(IMAGES.items()):
        packed, images = data / name, data / f"{name}-images"
        if not (packed / "manifest.json").exists():
            if not images.exists():
                report(f"drawing {count:,} synthetic images")
                numbers = ["--images", count, "--classes", CLASSES, "--seed", seed]
                with _running(log, None, "feeder.bench", "synthetic", images, *numbers):
                    pass
            report("packing them")
            side = ["--max-side", LONGER_SIDE_PX]
            with _running(log, None, "feeder", "pack", images, packed, *side):
                pass
        shutil.rmtree(images, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="feeder-smoke-") as sockets:
        endpoint = f"ipc://{sockets}/feeder"
        names = [text for name in IMAGES for text in ("--data", f"{name}={data / name}")]
        with _running(log, "feeder: ready, ", "feeder", "serve", *names, "--bind", endpoint):
            report("a feeder of this job serves them")
            yield endpoint


def serve_in_rank_0(
    options: TrainingOptions,
    place: Place,
    report: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> TrainingOptions:
    """Start the feeder in rank 0, until ``stack`` is closed; return options with its endpoint."""
    folder = options.folder
    assert folder is not None, "checked by the options"
    endpoint = in_rank_0(place, lambda: stack.enter_context(own_feeder(folder, report)))
    return replace(
        options, endpoint=endpoint, dataset="train", val_dataset="val", has_own_feeder=True
    )


@contextlib.contextmanager
def _running(log: Path, mark: str | None, module: str, *arguments: object) -> Iterator[None]:
    """Run a command until its end or, for the body, once its output has ``mark``; end it then.

    It writes to the end of ``log``. ResourceError if it fails.
    """
    name = f"{'feeder-bench' if module == 'feeder.bench' else module} {arguments[0]}"
    start = log.stat().st_size
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(os.getpid()), module, *map(str, arguments)],
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the job, which ends the feeder in its turn
        )
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    try:
        while True:
            status = process.wait() if mark is None else wait_for_exit(process, 0.05)
            text = log.read_bytes()[start:].decode("utf-8", "replace")
            if status == 0 if mark is None else mark in text:
                break
            if status is not None:
                last = [line.strip() for line in text.split("\n") if line.strip()][-1:]
                raise ResourceError(
                    f"`{name}` ended with status {status}: {last[0] if last else 'no output'}"
                )
            if time.monotonic() > deadline_s:
                raise ResourceError(
                    f"`{name}` was not ready within {READY_TIMEOUT_S:g} s: see {path_to_text(log)}"
                )
        yield
    finally:
        process.terminate()
        if wait_for_exit(process, STOP_TIMEOUT_S) is None:
            process.kill()
            process.wait()
