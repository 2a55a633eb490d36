"""SPDL: FFmpeg's decoder and filters in threads, the crop as a filter of each image."""

import itertools
import random
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import spdl.io
from protocol import SIZE_PX, Pixels, Work, draw_crop, serve
from spdl.pipeline import PipelineBuilder


def _load(job: tuple[str, tuple[int, int]]) -> Any:
    path, (width, height) = job
    x, y, w, h = draw_crop(width, height)
    mirror = "hflip," if random.random() < 0.5 else ""
    # Without "exact" FFmpeg rounds the crop's corner to whole chroma samples.
    filters = (
        f"crop={w}:{h}:{x}:{y}:exact=1,scale={SIZE_PX}:{SIZE_PX}:flags=bilinear,"
        f"{mirror}format=pix_fmts=rgb24"
    )
    return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=filters)


def _convert(frames: list[Any]) -> Pixels:
    return np.asarray(spdl.io.to_numpy(spdl.io.convert_frames(frames)))


def _jobs(work: Work) -> Iterator[tuple[str, tuple[int, int]]]:
    for _ in itertools.count():
        numbers = list(range(len(work.paths)))
        random.shuffle(numbers)
        for number in numbers:
            yield work.paths[number], work.sizes[number]


def _batches(work: Work) -> Iterator[Pixels]:
    pipeline = (
        PipelineBuilder()
        .add_source(_jobs(work))
        .pipe(_load, concurrency=work.cores)
        .aggregate(work.batch)
        .pipe(_convert)
        .add_sink(2)
        .build(num_threads=work.cores)
    )
    with pipeline.auto_stop():
        yield from pipeline


if __name__ == "__main__":
    work = Work.from_command_line()
    serve(_batches(work), versions={"spdl": version("spdl")})
