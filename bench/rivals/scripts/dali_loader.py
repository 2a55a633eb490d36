"""DALI's pipeline on the CPU: decode the region of a random crop, resize, mirror."""

from collections.abc import Iterator

import nvidia.dali
from nvidia.dali import fn, pipeline_def, types
from protocol import SIZE_PX, Pixels, Work, serve


@pipeline_def
def _pipeline(work: Work):  # type: ignore[no-untyped-def]  # DALI traces it, and returns its own
    encoded, labels = fn.readers.file(
        files=work.paths, labels=work.labels, random_shuffle=True, initial_fill=1024
    )
    images = fn.decoders.image_random_crop(
        encoded,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
        adjust_orientation=False,
        use_fast_idct=work.variant == "fast",
    )
    images = fn.resize(
        images,
        size=(SIZE_PX, SIZE_PX),
        interp_type=types.INTERP_LINEAR,
        antialias=work.variant == "antialias",
    )
    return fn.flip(images, horizontal=fn.random.coin_flip()), labels


def _batches(work: Work) -> Iterator[Pixels]:
    pipeline = _pipeline(work, batch_size=work.batch, num_threads=work.cores, device_id=None)
    pipeline.build()
    while True:
        images, _labels = pipeline.run()
        yield images.as_array()


if __name__ == "__main__":
    work = Work.from_command_line()
    serve(_batches(work), versions={"DALI": nvidia.dali.__version__})
