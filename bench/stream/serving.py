"""What benches of one daemon share: the dataset, a worker on one core, this process on another."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from feeder.dataset.manifest import load_manifest

from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import choose_cores, describe_machine, pinned_to


@contextmanager
def serving_one_core(
    arguments: argparse.Namespace, *options: str
) -> Iterator[tuple[Daemon, dict[str, object]]]:
    """Yield a daemon with one worker for the dataset of the command line, and the report's machine.

    ``options`` are arguments of ``feeder serve``.
    """
    worker_core, client_core = choose_cores(arguments.core)
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        load_manifest(path)  # DatasetError, before a daemon is started
        machine = describe_machine({"worker": worker_core, "client": client_core})
        with (
            pinned_to(client_core),
            running_daemon(path, workers=1, cores=[worker_core], options=options) as daemon,
        ):
            yield daemon, machine
