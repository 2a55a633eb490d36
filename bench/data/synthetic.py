"""Synthetic ImageNet: class-named folders of JPEGs for the demo, the bench and users without data.

    feeder-bench synthetic DST --images N --classes K

The same seed gives the same files whatever the number of processes; ``synthetic_image`` describes
the pictures. Several processes are those that pack (``feeder.pack.task_pool``).
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from feeder.errors import ConfigError, ResourceError
from feeder.pack.task_pool import Report, run_tasks

from .synthetic_image import MAX_CLASSES, class_look, draw_jpeg


class Setup(msgspec.Struct, frozen=True):
    folder: str
    classes: int
    seed: int


class Task(msgspec.Struct, frozen=True):
    first: int
    images: int
    step: int


def perform(setup: Setup, task: Task, report: Report) -> None:
    """Write the images of ``task``; report each."""
    for index in range(task.first, task.images, task.step):
        name = class_look(index % setup.classes).name
        path = Path(setup.folder, name, f"{name[:4]}_{index // setup.classes:05d}.jpg")
        path.write_bytes(draw_jpeg(index, classes=setup.classes, seed=setup.seed))
        report.add(images=1)


def write_synthetic(
    destination: Path,
    *,
    images: int,
    classes: int,
    seed: int = 0,
    jobs: int,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write ``images`` JPEGs into class-named folders under a new folder ``destination``.

    The files do not depend on ``jobs``. The folder appears when it is complete, or not at all.
    ``progress`` is called with the number of images since its last call. Raises ConfigError for
    impossible numbers or a destination that exists, ResourceError when writing fails.
    """
    if not 1 <= classes <= min(images, MAX_CLASSES):
        raise ConfigError(
            f"classes is {classes}; it must be 1 to {MAX_CLASSES}, with at least one image each"
        )
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(f"{destination} exists already; name a new folder or remove it")
    staging: Path | None = None
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(
            tempfile.mkdtemp(prefix=f".{destination.name}.partial-", dir=destination.parent)
        )
        for label in range(classes):
            (staging / class_look(label).name).mkdir()
        setup = Setup(str(staging), classes, seed)
        tasks = [Task(job, images, jobs) for job in range(min(jobs, images))]
        if len(tasks) == 1:
            report = Report(lambda message: progress(message["images"]))
            perform(setup, tasks[0], report)
            progress(report.take().get("images", 0))
        else:
            with closing(run_tasks(__name__, setup, tasks, jobs=jobs)) as messages:
                for message in messages:
                    progress(message.get("images", 0))
        staging.chmod(0o755)
        staging.replace(destination)
    except OSError as error:
        raise ResourceError(
            f"cannot write the synthetic images to {destination}: {error}"
        ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def run(arguments: argparse.Namespace) -> str:
    write_synthetic(
        arguments.dataset,
        images=arguments.images,
        classes=arguments.classes,
        seed=arguments.seed,
        jobs=arguments.jobs,
    )
    return f"{arguments.images} images of {arguments.classes} classes in {arguments.dataset}\n"
