"""Unpacks a dataset into a folder of classes: OUT/class/name.jpg.

Pixels equal those of the source files (of samples that were converted: those of the conversion).
A name keeps its suffix where that is one of JPEGs, else it gets .jpg. Each file appears whole or
not at all.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from feeder.disk_errors import explain_disk_errors, is_inside
from feeder.errors import ConfigError
from feeder.first_read import check_readable
from feeder.manifest import Manifest, load_manifest
from feeder.progress import ProgressLine
from feeder.task_pool import TaskPool
from feeder.unpack_shard import UnpackSetup, UnpackTask, remove_unfinished

_AGAIN = "run the same command again with --force"


def unpack_dataset(
    path: Path, out: Path, *, jobs: int, force: bool, progress: ProgressLine
) -> Manifest:
    """Unpack the dataset at ``path`` into ``out``; return its manifest.

    ``force`` allows an ``out`` that is not empty, and replaces files of the same names. Raises
    DatasetError, ConfigError and ResourceError.
    """
    check_readable({f"dataset {path}": path})
    manifest = load_manifest(path)
    if is_inside(out, path):
        raise ConfigError(f"{out} is inside the dataset {path}: give a folder outside")
    with explain_disk_errors("unpacking into", out, _AGAIN):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file where the folder to unpack into should be")
        out.mkdir(parents=True, exist_ok=True)
        if not force and any(out.iterdir()):
            raise ConfigError(
                f"{out} is not empty: give an empty or a new folder, or --force to replace files "
                "of the same names"
            )
        setup = UnpackSetup(path=str(path.absolute()), out=str(out.absolute()))
        progress.begin("unpacking", "samples", manifest.samples)
        try:
            with TaskPool("feeder.unpack_shard", msgspec.to_builtins(setup), jobs=jobs) as pool:
                for _, _, news in pool.run(_tasks(manifest)):
                    progress.add(news["samples"], news["bytes"])
        finally:
            progress.end()
            remove_unfinished(out)
    return manifest


def _tasks(manifest: Manifest) -> Iterator[dict[str, object]]:
    for number, entry in enumerate(manifest.shards):
        yield msgspec.to_builtins(UnpackTask(number=number, entry=entry))
