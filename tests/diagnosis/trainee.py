"""A training loop without a model, for the conditions: takes batches, and pretends to compute.

    python -m tests.diagnosis.trainee ENDPOINT [--step-s S] [--loaders N] [--window N] …

Prints the number of images that it has taken after the first step, and then every half second,
until it is killed.
"""

import argparse
import sys
import time
from collections.abc import Iterator

from feeder.process.child import die_with_parent
from trainer_client import NumpyLoader

REPORT_INTERVAL_S = 0.5


def main(arguments: argparse.Namespace) -> None:
    """Take batches of all loaders in turn; with several, only the first one's pace is kept."""
    die_with_parent(arguments.parent)
    loaders = [
        NumpyLoader(
            arguments.endpoint,
            dataset=arguments.dataset,
            batch_size=arguments.batch_size,
            image_size=arguments.image_size,
            window=arguments.window,
            seed=number,
        )
        for number in range(arguments.loaders)
    ]
    iterators = [iter(forever(loader)) for loader in loaders]
    images, reported_s, due_s = 0, 0.0, time.monotonic()
    while True:
        for iterator in iterators:
            next(iterator)
            images += arguments.batch_size
        due_s = max(due_s, time.monotonic() - arguments.step_s) + arguments.step_s
        if arguments.step_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
        if time.monotonic() - reported_s >= REPORT_INTERVAL_S:
            reported_s = time.monotonic()
            sys.stdout.write(f"{images}\n")
            sys.stdout.flush()


def forever(loader: NumpyLoader) -> Iterator[object]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--dataset", default="d")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--loaders", type=int, default=1)
    main(parser.parse_args())
