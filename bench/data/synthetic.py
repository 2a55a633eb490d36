"""Synthetic ImageNet: class-named folders of JPEGs for the demo, the bench and users without data.

    feeder-bench synthetic DST --images N --classes K

The same seed gives the same files whatever the number of processes; ``synthetic_image`` describes
the pictures.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from feeder.errors import ConfigError, ResourceError
from feeder.process.child import die_with_parent

from .synthetic_image import MAX_CLASSES, class_look, draw_jpeg


def write_synthetic(
    destination: Path,
    *,
    images: int,
    classes: int,
    seed: int = 0,
    jobs: int,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write ``images`` JPEGs into class-named folders under a new folder ``destination``.

    The files do not depend on ``jobs``. The folder appears when it is complete, or not at all.
    ``progress`` is called with the number of images done so far. Raises ConfigError for impossible
    numbers or a destination that exists, ResourceError when writing fails.
    """
    _check_request(destination, images, classes, seed, jobs)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(
            tempfile.mkdtemp(prefix=f".{destination.name}.partial-", dir=destination.parent)
        )
    except OSError as error:
        raise _unwritable(destination, error) from error
    try:
        for label in range(classes):
            (staging / class_look(label).name).mkdir()
        shares = [range(job, images, jobs) for job in range(min(jobs, images))]
        if len(shares) == 1:
            for done in _write_share(staging, shares[0], classes, seed):
                _report(progress, done)
        else:
            _write_shares(staging, shares, classes, seed, progress)
        staging.chmod(0o755)
        staging.replace(destination)
    except OSError as error:
        raise _unwritable(destination, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_request(destination: Path, images: int, classes: int, seed: int, jobs: int) -> None:
    if not 1 <= classes <= MAX_CLASSES:
        raise ConfigError(f"classes is {classes}; it must be 1 to {MAX_CLASSES}")
    if images < classes:
        raise ConfigError(f"images is {images}; {classes} classes need at least one image each")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more")
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; it must be 1 or more")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(f"{destination} exists already; name a new folder or remove it")


def _unwritable(destination: Path, error: OSError) -> ResourceError:
    return ResourceError(f"cannot write the synthetic images to {destination}: {error}")


def _report(progress: Callable[[int], None] | None, done: int) -> None:
    if progress is not None:
        progress(done)


def _write_share(staging: Path, share: range, classes: int, seed: int) -> Iterator[int]:
    """Write the images of ``share``; yield how many are done, repeatedly and at the end."""
    for done, index in enumerate(share, 1):
        folder = class_look(index % classes).name
        path = staging / folder / f"{folder[:4]}_{index // classes:05d}.jpg"
        path.write_bytes(draw_jpeg(index, classes=classes, seed=seed))
        if done % 16 == 0 or done == len(share):
            yield done


def _run_share(
    parent: int,
    connection: multiprocessing.connection.Connection,
    staging: Path,
    share: range,
    classes: int,
    seed: int,
) -> None:
    """Run as one of the processes: send the number of images done, or the text of an error."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends us
    try:
        for done in _write_share(staging, share, classes, seed):
            connection.send_bytes(str(done).encode())
    except OSError as error:
        connection.send_bytes(f"!{error}".encode(errors="replace"))


def _write_shares(
    staging: Path,
    shares: Sequence[range],
    classes: int,
    seed: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Write each share in a spawned process; on any error end them all."""
    context = multiprocessing.get_context("spawn")
    done_of: dict[multiprocessing.connection.Connection, int] = {}
    processes = []
    try:
        for share in shares:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_share,
                args=(os.getpid(), theirs, staging, share, classes, seed),
                daemon=True,
            )
            with _safe_path():
                process.start()
            processes.append(process)
            theirs.close()
            done_of[ours] = 0
        running = dict(zip(done_of, shares, strict=True))
        while running:
            for ready in multiprocessing.connection.wait(list(running)):
                assert isinstance(ready, multiprocessing.connection.Connection)
                done_of[ready] = _receive_done(ready)
                if done_of[ready] == len(running[ready]):
                    del running[ready]
                _report(progress, sum(done_of.values()))
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for connection in done_of:
            connection.close()


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start processes whose first imports are not from the working directory, as -P does.

    multiprocessing starts them by ``python -c``, and passes its own module path only later.
    """
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _receive_done(connection: multiprocessing.connection.Connection) -> int:
    try:
        message = connection.recv_bytes().decode()
    except EOFError:
        raise ResourceError(
            "a process that draws synthetic images died (out of memory?); try fewer --jobs"
        ) from None
    if message.startswith("!"):
        raise ResourceError(f"cannot write the synthetic images: {message[1:]}")
    return int(message)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``run`` takes."""
    parser.add_argument("destination", type=Path, metavar="DST", help="folder to make")
    parser.add_argument("--images", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--classes", type=int, default=10, help=f"1 to {MAX_CLASSES} (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other images")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="processes (default: the cores)")


def run(arguments: argparse.Namespace) -> str:
    """Write the set that the command line asks for; return a line about it."""
    write_synthetic(
        arguments.destination,
        images=arguments.images,
        classes=arguments.classes,
        seed=arguments.seed,
        jobs=arguments.jobs,
    )
    return f"{arguments.images} images of {arguments.classes} classes in {arguments.destination}\n"
