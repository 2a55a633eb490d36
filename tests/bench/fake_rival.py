"""A rival for tests of the bench: the real protocol, made-up batches, and faults by its variant.

Variants: ``fine``, ``chatty`` (prints lines outside the protocol), ``black`` (batches of zeros),
``crash`` (at start), ``crash-later`` (in its first turn), ``hang`` (never gets ready), ``wrong``
(batches of another shape), ``ahead`` (counts in a file while it runs).
"""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "rivals" / "scripts"))

from protocol import SIZE_PX, Pixels, Work, serve


def make_environment(folder: Path) -> None:
    """Make the virtual environment ``fake`` in ``folder``, which is our own Python."""
    launcher = folder / "fake" / "bin" / "python"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    launcher.chmod(0o755)
    (folder / "fake" / "installed.txt").touch()


def _batches(work: Work) -> Iterator[Pixels]:
    # Like the synthetic images, with which the tests compare them.
    pixels = np.full((work.batch, SIZE_PX, SIZE_PX, 3), 128, np.uint8)
    if work.variant == "black":
        pixels[:] = 0
    if work.variant == "wrong":
        pixels = pixels[:, :-1]
    yield pixels
    if work.variant == "crash-later":
        raise ValueError("the second batch is too much")
    while True:
        yield pixels


def _count(path: Path) -> None:
    number = 0
    while True:
        number += 1
        path.write_text(str(number))
        time.sleep(0.001)


def main() -> None:
    work = Work.from_command_line()
    if work.variant == "crash":
        raise SystemExit("fake: there is no such library")
    if work.variant == "hang":
        threading.Event().wait()
    if work.variant == "chatty":
        sys.stdout.write("ready for nothing\n")
        sys.stdout.flush()
    if work.variant == "ahead":
        counter = work.folder / "counter"
        threading.Thread(target=_count, args=(counter,), daemon=True).start()
    batches = _batches(work)
    serve(batches, versions={"fake": "1.2", "images": str(len(work.paths))})


if __name__ == "__main__":
    main()
