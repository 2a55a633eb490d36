"""The command line of ``feeder-bench cluster``, as a simulated cluster."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Self

from feeder.errors import ConfigError

from .shape import Cluster, DatasetShape, Fault, HostShape, JobShape
from .sizing import HOSTS_MAX, choose_ranks

HOSTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RANKS_A_HOST: Final = 2
RANKS_MAX: Final = 4096
_MOST: Final = 1e9
FAULT_HOSTS: Final = 8
_JOB, _HOST, _DATASET = JobShape(), HostShape(), DatasetShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What to simulate."""

    cluster: Cluster
    """Of one host; the other numbers have the same shape."""
    hosts: tuple[int, ...]
    ranks: tuple[int, ...]
    """Each with all numbers of hosts; empty: RANKS_A_HOST for each host."""
    wanted_images_s: float
    """0: no number of hosts is looked for."""
    faults: tuple[Fault, ...]
    fault_hosts: int
    any_node: bool
    measure: bool
    dataset: Path | None
    images: int
    validate: bool
    seconds: float

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Return the options of a command line; ConfigError for a list that is malformed."""
        hosts = parse_numbers("--hosts", arguments.hosts, HOSTS_MAX)
        ranks = parse_numbers("--ranks", arguments.ranks, RANKS_MAX) if arguments.ranks else ()
        faults = tuple(parse_fault(kind, text) for kind, text in arguments.faults or ())
        for fault in faults:
            if fault.kind != "join" and fault.host >= arguments.fault_hosts:
                raise ConfigError(
                    f"--{fault.kind} {fault.host}@{fault.at_s:g}: the hosts are 0 .. "
                    f"{arguments.fault_hosts - 1}: name one of them, or raise --fault-hosts"
                )
        job = JobShape(
            batch_size=arguments.batch_size,
            window=arguments.window,
            rank_images_s=arguments.rank_images,
            rank_gb_s=arguments.rank_gb,
            chunk_images=arguments.chunk_images,
        )
        host = HostShape(
            cores=arguments.cores,
            images_per_core_s=arguments.images_per_core,
            nic_gbit_s=arguments.nic,
            storage_mb_s=arguments.storage,
            cache_gb=arguments.cache_gb,
        )
        dataset = DatasetShape(
            samples=arguments.samples, lanes=arguments.lanes, is_cold=arguments.cold
        )
        wanted = arguments.images_per_second
        if arguments.plot is not None and not arguments.validate and (wanted or len(hosts) < 2):
            raise ConfigError("--plot needs two numbers of hosts: add to --hosts, or omit it")
        most = max((*ranks, RANKS_A_HOST * arguments.fault_hosts))
        if wanted:
            most = max(most, choose_ranks(wanted) if not ranks else 0)
        elif not ranks:
            most = max(most, RANKS_A_HOST * max(hosts))
        if dataset.samples < job.batch_size * most:
            raise ConfigError(
                f"--samples {dataset.samples} gives {most} ranks no batch of {job.batch_size} "
                "each: use more samples, fewer ranks or hosts, or smaller batches"
            )
        cluster = Cluster(
            hosts=1, host=host, job=job, dataset=dataset, latency_s=arguments.latency_us / 1e6
        )
        return cls(
            cluster=cluster,
            hosts=hosts,
            ranks=ranks,
            wanted_images_s=wanted,
            faults=faults,
            fault_hosts=arguments.fault_hosts,
            any_node=arguments.any,
            measure=arguments.measure,
            dataset=arguments.dataset,
            images=arguments.images,
            validate=arguments.validate,
            seconds=arguments.seconds,
        )

    def of_size(self, hosts: int, ranks: int = 0) -> Cluster:
        """Return the cluster with this many hosts, and with RANKS_A_HOST for each by default."""
        ranks = ranks or RANKS_A_HOST * hosts
        return replace(self.cluster, hosts=hosts, job=replace(self.cluster.job, ranks=ranks))

    @property
    def clusters(self) -> list[Cluster]:
        """All clusters to simulate."""
        return [self.of_size(hosts, ranks) for hosts in self.hosts for ranks in self.ranks or (0,)]


def parse_numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    """Return the numbers in ``1,2,4``; ConfigError where one is none, or out of range."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(1 <= number <= most for number in numbers):
        raise ConfigError(f"{option} {text}: write numbers 1 .. {most}, as in 1,4,16")
    return tuple(sorted(set(numbers)))


def parse_fault(kind: Literal["lose", "freeze", "join"], text: str) -> Fault:
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


class _AddFault(argparse.Action):
    """Adds (kind, text) to the faults, in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option: str | None = None,
    ) -> None:
        faults = [*(namespace.faults or ()), ((option or "").lstrip("-"), values)]
        namespace.faults = faults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``ClusterOptions.of`` takes, and --json."""
    parser.add_argument(
        "dataset",
        type=Path,
        nargs="?",
        metavar="DST",
        help="packed dataset for --measure (default: synthetic ImageNet, made for the run)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    numbers = ",".join(map(str, HOSTS))
    parser.add_argument(
        "--hosts", default=numbers, metavar="N,…", help=f"numbers of hosts (default: {numbers})"
    )
    parser.add_argument(
        "--images-per-second",
        type=_zero_or_more,
        default=0.0,
        metavar="X",
        help="find the fewest hosts that deliver X images/s (default: 0, a table of --hosts)",
    )
    whole, real = _positive, _above_zero
    for option, kind, default, what in (
        ("--cores", whole, _HOST.cores, "cores of a host, each with a worker"),
        ("--images-per-core", real, _HOST.images_per_core_s, "images/s of a core"),
        ("--nic", real, _HOST.nic_gbit_s, "Gbit/s of a host's network card"),
        ("--storage", real, _HOST.storage_mb_s, "MB/s that a host reads what is not in its memory"),
        ("--cache-gb", real, _HOST.cache_gb, "GB of a host's page cache"),
        ("--batch-size", whole, _JOB.batch_size, "images in a batch"),
        ("--window", whole, _JOB.window, "batches that a rank requests ahead"),
        ("--rank-gb", real, _JOB.rank_gb_s, "GB/s that a rank receives"),
        ("--chunk-images", whole, _JOB.chunk_images, "images that a worker makes at a time"),
        ("--samples", whole, _DATASET.samples, "samples of the dataset"),
        ("--latency-us", real, 200.0, "microseconds from host to host"),
        ("--fault-hosts", whole, FAULT_HOSTS, "hosts in the simulation of faults"),
        ("--images", whole, 512, "images to measure with, or to make, for --measure"),
        ("--seconds", real, 20.0, "seconds of each real run, for --validate"),
    ):
        parser.add_argument(
            option,
            type=kind,
            default=default,
            metavar="N",
            help=f"{what} (default: {default:g})",
        )
    parser.add_argument(
        "--ranks",
        default="",
        metavar="N,…",
        help=f"numbers of ranks, each with all numbers of hosts (default: {RANKS_A_HOST} a host)",
    )
    parser.add_argument(
        "--rank-images",
        type=_zero_or_more,
        default=0.0,
        metavar="N",
        help="images/s that a rank consumes (default: 0, as many as it can)",
    )
    parser.add_argument(
        "--lanes",
        type=_not_negative,
        default=0,
        metavar="N",
        help="lanes of the recipe (default: by the dataset's size, as in the product)",
    )
    for option, what in (
        ("--cold", "the first epoch: everything is read from storage"),
        ("--any", "simulate asking any node, too: what does ownership cost?"),
        ("--measure", "measure what a core of this machine makes, instead of --images-per-core"),
        ("--validate", "compare the model with real daemons on this machine, instead"),
    ):
        parser.add_argument(option, action="store_true", help=what)
    for option, form, what in (
        ("--lose", "HOST@T", "kill a host T seconds after the steady state began"),
        ("--freeze", "HOST@T", "the same, as a power failure: connections stay"),
        ("--join", "T", "add a host"),
    ):
        parser.add_argument(
            option, dest="faults", action=_AddFault, metavar=form, help=f"{what}; repeatable"
        )


def _positive(text: str) -> int:
    value = _not_negative(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def _not_negative(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is not 0 or more")
    return value


def _above_zero(text: str) -> float:
    value = _zero_or_more(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _zero_or_more(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {_MOST:g}")
    return value
