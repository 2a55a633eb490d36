"""The command line of ``feeder-bench cluster``, and the clusters that it asks for."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Final

from feeder.errors import ConfigError

from .shape import Cluster, Fault, FaultKind
from .steady import HOSTS_MAX, choose_ranks

HOSTS: Final = "1,2,4,8,16,32,64,128,256"
RANKS_A_HOST: Final = 2
RANKS_MAX: Final = 4096
_MOST: Final = 1e9

_SHAPE: Final = {
    entry.metadata["option"]: entry for entry in fields(Cluster) if "option" in entry.metadata
}
_NUMBERS: Final = (
    *((name, entry.default, entry.metadata["what"]) for name, entry in _SHAPE.items()),
    ("images-per-second", 0.0, "find the fewest hosts that deliver so many, if above 0"),
    ("fault-hosts", 8, "hosts in the simulation of faults"),
    ("images", 512, "images to measure with, or to make, for --measure"),
    ("seconds", 20.0, "seconds of each real run, for --validate"),
)
"""Options with a number, and their defaults. Where the default is 0, 0 is allowed."""

_FAULTS: Final[Sequence[tuple[FaultKind, str, str]]] = (
    ("lose", "HOST@T", "kill a host T seconds after the steady state began"),
    ("freeze", "HOST@T", "the same, as a power failure: connections stay"),
    ("join", "T", "add a host"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this bench's own options."""
    parser.add_argument(
        "--hosts",
        type=partial(_parse_numbers, "--hosts", HOSTS_MAX),
        default=HOSTS,
        metavar="N,…",
        help=f"numbers of hosts (default: {HOSTS})",
    )
    parser.add_argument(
        "--ranks",
        type=partial(_parse_numbers, "--ranks", RANKS_MAX),
        default=(),
        metavar="N,…",
        help=f"numbers of ranks, each with all numbers of hosts (default: {RANKS_A_HOST} a host)",
    )
    for option, default, what in _NUMBERS:
        words = f"{what} (default: {default:g})"
        parser.add_argument(
            f"--{option}", type=type(default), default=default, metavar="N", help=words
        )
    for option, what in (
        ("--cold", "the first epoch: everything is read from storage"),
        ("--any", "simulate asking any node, too: what does ownership cost?"),
        ("--measure", "measure what a core of this machine makes, instead of --images-per-core"),
        ("--validate", "compare the model with real daemons on this machine, instead"),
    ):
        parser.add_argument(option, action="store_true", help=what)
    for kind, form, what in _FAULTS:
        parser.add_argument(
            f"--{kind}",
            dest="faults",
            action="append",
            type=partial(_parse_fault, kind),
            metavar=form,
            help=f"{what}; repeatable",
        )


def read_cluster(arguments: argparse.Namespace) -> Cluster:
    """Return what is simulated, with one host; ConfigError for options that contradict."""
    values = {}
    for option, default, _ in _NUMBERS:
        value = values[option] = getattr(arguments, option.replace("-", "_"))
        if not 0 <= value <= _MOST or (default and not value):
            least = "above 0" if default else "0 or more"
            raise ConfigError(f"--{option} {value:g} is not {least}, and {_MOST:g} at most")
    shape = {entry.name: values[name] for name, entry in _SHAPE.items()}
    cluster = Cluster(**shape, cold=arguments.cold)
    hosts, ranks, wanted = arguments.hosts, arguments.ranks, arguments.images_per_second
    for fault in arguments.faults or ():
        if fault.kind != "join" and fault.host >= arguments.fault_hosts:
            raise ConfigError(
                f"--{fault.kind} {fault.host}@{fault.at_s:g}: the hosts are 0 .. "
                f"{arguments.fault_hosts - 1}: name one of them, or raise --fault-hosts"
            )
    if arguments.plot is not None and not arguments.validate and (wanted or len(hosts) < 2):
        raise ConfigError("--plot needs two numbers of hosts: add to --hosts, or omit it")
    by_hosts = choose_ranks(wanted) if wanted else RANKS_A_HOST * max(hosts)
    most = max(max(ranks, default=by_hosts), RANKS_A_HOST * arguments.fault_hosts)
    if cluster.samples < cluster.batch_size * most:
        raise ConfigError(
            f"--samples {cluster.samples} gives {most} ranks no batch of {cluster.batch_size} "
            "each: use more samples, fewer ranks or hosts, or smaller batches"
        )
    return cluster


def _parse_numbers(option: str, most: int, text: str) -> tuple[int, ...]:
    """Return the numbers in ``1,2,4``; ConfigError where one is none, or out of range."""
    try:
        numbers = {int(part) for part in text.split(",")}
    except ValueError:
        numbers = {0}
    if not 1 <= min(numbers) <= max(numbers) <= most:
        raise ConfigError(f"{option} {text}: write numbers 1 .. {most}, as in 1,4,16")
    return tuple(sorted(numbers))


def _parse_fault(kind: FaultKind, text: str) -> Fault:
    """Return the fault of ``HOST@SECONDS``, of a join ``SECONDS``; ConfigError if malformed."""
    host, _, at_s = text.rpartition("@")
    try:
        fault = Fault(kind=kind, host=int(host or "0"), at_s=float(at_s))
    except ValueError:
        fault = None
    is_named = bool(host) != (kind == "join")
    if fault is None or not is_named or not (0 <= fault.at_s <= 600 and fault.host >= 0):
        form = "SECONDS, as in 3.5" if kind == "join" else "HOST@SECONDS, as in 2@3.5"
        raise ConfigError(f"--{kind} {text}: write {form}, with 0 .. 600 s")
    return fault
