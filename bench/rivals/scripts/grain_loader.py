"""Grain: a MapDataset of the files, read in threads on one core, in processes on more."""

from collections.abc import Iterator
from importlib.metadata import version

import grain
from pillow_image import VERSIONS, make_sample
from protocol import Pixels, Work, die_with_parent, serve


def _start_worker(_number: int, _count: int) -> None:
    die_with_parent()


def _batches(work: Work) -> Iterator[Pixels]:
    samples = grain.MapDataset.source(work.paths).shuffle(seed=0).repeat().map(make_sample)
    threads = grain.ReadOptions(num_threads=1, prefetch_buffer_size=32)
    dataset = samples.to_iter_dataset(threads).batch(work.batch)
    if work.processes:
        processes = grain.MultiprocessingOptions(num_workers=work.processes)
        dataset = dataset.mp_prefetch(processes, worker_init_fn=_start_worker)
    yield from dataset


if __name__ == "__main__":
    work = Work.from_command_line()
    serve(_batches(work), versions={"grain": version("grain"), **VERSIONS})
