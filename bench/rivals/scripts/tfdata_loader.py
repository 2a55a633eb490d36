"""tf.data with the fused decode_and_crop_jpeg: in this process, or from a tf.data service.

The crops are drawn before the start, by the same rules as for all contenders: TensorFlow's own
``sample_distorted_bounding_box`` draws smaller ones, which would be less work.
"""

import multiprocessing
import random
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf
from protocol import SIZE_PX, Pixels, Work, die_with_parent, draw_crop, serve


def _dataset(work: Work, *, antialias: bool) -> Any:
    crops = [draw_crop(width, height) for width, height in work.sizes]
    windows = [(y, x, h, w) for x, y, w, h in crops]
    flips = [random.random() < 0.5 for _ in work.paths]
    numbers = list(range(len(work.paths)))
    random.shuffle(numbers)
    columns = (work.paths, work.labels, windows, flips)
    shuffled = tuple([column[number] for number in numbers] for column in columns)

    def load(path: Any, label: Any, window: Any, flip: Any) -> Any:
        image = tf.image.decode_and_crop_jpeg(tf.io.read_file(path), window, channels=3)
        image = tf.image.resize(image, (SIZE_PX, SIZE_PX), "bilinear", antialias=antialias)
        image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
        return tf.cast(tf.round(image), tf.uint8), label

    return (
        tf.data.Dataset.from_tensor_slices(shuffled)
        .repeat()
        .map(load, num_parallel_calls=work.cores, deterministic=False)
        .batch(work.batch, drop_remainder=True)
    )


def _options(work: Work) -> Any:
    options = tf.data.Options()
    options.threading.private_threadpool_size = work.cores
    options.threading.max_intra_op_parallelism = 1
    return options


def _run_service(work: Work, connection: Connection) -> None:
    die_with_parent()
    limit_threads(work)
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    config = tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    worker = tf.data.experimental.service.WorkerServer(config)
    connection.send(dispatcher.target)
    worker.join()


def limit_threads(work: Work) -> None:
    """Limit TensorFlow's own pools to the cores given."""
    tf.config.threading.set_inter_op_parallelism_threads(work.cores)
    tf.config.threading.set_intra_op_parallelism_threads(work.cores)


def _batches(work: Work) -> Iterator[Pixels]:
    dataset = _dataset(work, antialias=work.variant == "antialias").with_options(_options(work))
    if work.variant == "service":
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        spawn.Process(target=_run_service, args=(work, theirs), daemon=True).start()
        distribute = tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service=ours.recv()
        )
        dataset = dataset.apply(distribute)
    for images, _labels in dataset.prefetch(2).as_numpy_iterator():
        yield images


if __name__ == "__main__":
    work = Work.from_command_line()
    limit_threads(work)
    serve(_batches(work), versions={"tensorflow": tf.__version__})
