"""``feeder names DST ID…``: the names that samples had in the source of their dataset."""

import argparse
from pathlib import Path
from typing import Any

from feeder.cli.key_options import add_key_options
from feeder.cli.report_options import DEADLINE_S, check_timeout
from feeder.errors import ConfigError


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "names",
        help="show from which files samples were packed",
        description="Print the names that samples had in the source of the dataset DST, a line for "
        "each ID in the given order: a path below the source's folder, a key in a tar. Ids are "
        "those of batch.sample_ids. With an ENDPOINT (tcp://HOST:PORT or ipc:///PATH) in place of "
        "DST, the feeder there is asked.",
    )
    parser.add_argument("dataset", metavar="DST|ENDPOINT")
    parser.add_argument("ids", metavar="ID", type=int, nargs="+")
    parser.add_argument(
        "--dataset", dest="name", metavar="NAME", help="with ENDPOINT: the dataset's name there"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEADLINE_S,
        metavar="S",
        help=f"with ENDPOINT: seconds to wait for a reply (default: {DEADLINE_S:g})",
    )
    add_key_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the names."""
    from feeder.process.path_text import printable

    is_endpoint = "://" in arguments.dataset
    for name in (_request_names if is_endpoint else _read_names)(arguments):
        print(printable(name))
    return 0


def _read_names(arguments: argparse.Namespace) -> list[str]:
    from feeder.dataset.opened import Dataset

    if arguments.name is not None:
        raise ConfigError("--dataset goes with an ENDPOINT; a folder is the dataset itself")
    with Dataset.open(Path(arguments.dataset)) as dataset:
        samples = dataset.layout.samples
        for number in arguments.ids:
            if not 0 <= number < samples:
                raise ConfigError(
                    f"{arguments.dataset} has no sample {number}, it has 0 .. {samples - 1}"
                )
        return [dataset.read_name(number) for number in arguments.ids]


def _request_names(arguments: argparse.Namespace) -> list[str]:
    from feeder.client.stats import request_names
    from feeder.security.keys import read_client_keys

    if arguments.name is None:
        raise ConfigError("an ENDPOINT needs the dataset's name: give --dataset NAME")
    keys = read_client_keys(arguments.server_key, arguments.client_key)
    names = request_names(
        arguments.dataset, arguments.name, arguments.ids, check_timeout(arguments), keys
    )
    return [names[number] for number in arguments.ids]
