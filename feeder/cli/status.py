"""``feeder status ENDPOINT``: prints the counters of a running node process."""

import argparse
import json
from typing import Any

from feeder.cli.key_options import add_key_options
from feeder.errors import ConfigError

_DEADLINE_S = 5.0


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "status",
        help="print the counters of a running daemon",
        description="Print what the node process at ENDPOINT has counted since it started.",
    )
    parser.add_argument("endpoint", metavar="ENDPOINT", help="e.g. tcp://127.0.0.1:5555")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_DEADLINE_S,
        metavar="S",
        help=f"seconds to wait for the reply (default: {_DEADLINE_S:g})",
    )
    add_key_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Request the counters and print them; PeerError when no reply comes in time."""
    from feeder.client.stats import request_counters
    from feeder.metrics.counters import format_counters
    from feeder.security.keys import read_client_keys

    if not 0 < arguments.timeout <= 3600:
        raise ConfigError(f"--timeout {arguments.timeout:g}: it must be above 0, up to 3600 s")
    keys = read_client_keys(arguments.server_key, arguments.client_key)
    counters = request_counters(arguments.endpoint, arguments.timeout, keys)
    if arguments.json:
        print(json.dumps(counters, indent=2))
    else:
        print(format_counters(counters))
    return 0
