"""The report of ``feeder-bench stream``: the conclusion, each way to a client, then all rows.

A way is images over ipc or tcp to some clients from some workers. It is compared with the same
batches made in the same rounds by one process without a daemon (the row ``sample/whole``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..report import (
    BRACKETS,
    FEWEST_ROUNDS,
    RATE,
    Report,
    Result,
    align,
    format_number,
    format_ratio,
    wrap,
)

WITHOUT_DAEMON: Final = "one process, without a daemon"

_WAY: Final = re.compile(r"stream/(ipc|tcp)(-copy)?(?:-(\d+)-clients)?(-(\d+)-workers)?")
_WITHOUT: Final = re.compile(r"sample/whole(?:-beside-(\d+)-workers)?")
_BARE: Final = {
    "memcpy": "copy in memory, the limit",
    "zmq/ipc": "raw ZeroMQ, ipc",
    "zmq/ipc-copied": "raw ZeroMQ, ipc, and copied",
    "zmq/tcp": "raw ZeroMQ, tcp",
    "zmq/tcp-copied": "raw ZeroMQ, tcp, and copied",
    "transport/ipc": "Feeder, ipc",
    "transport/tcp": "Feeder, tcp",
}


class Way(NamedTuple):
    """A way of images to clients, with its rows."""

    transport: str
    """"ipc" or "tcp"."""
    is_copied: bool  # over an ipc socket: the client does not map the slots
    clients: int
    workers: int
    rate: Result
    gap_p99: Result | None  # the time between batches; None where no client got two in a row
    daemon_cpu: Result
    client_cpu: Result

    @property
    def words(self) -> str:
        """The way as text and picture call it."""
        how = "tcp" if self.transport == "tcp" else "ipc, copied" if self.is_copied else ""
        return f"{count(self.clients, 'client')}, {how or 'ipc, in place'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport(Report):
    def to_text(self) -> str:
        lines = wrap([*conclude(self), describe_measured(self)])
        lines += ["", *_format_ways(self), "", *_format_bare(self), ""]
        lines.append("All rows, as --json has them; sample/whole is made without a daemon:")
        return "\n".join(lines) + "\n" + Report.to_text(self)


def ways_of(report: Report) -> list[Way]:
    """Return all ways: by workers, then by clients, in the order of their rows."""
    rows, ways = report.rows, []
    for row in report.results:
        way = _WAY.fullmatch(row.name)
        if way is None or row.unit != RATE:
            continue
        suffix = way[4] or ""
        name = row.name.removesuffix(suffix)
        ways.append(
            Way(
                transport=way[1],
                is_copied=way[2] is not None,
                clients=int(way[3] or 1),
                workers=int(way[5] or 1),
                rate=row,
                gap_p99=rows.get(f"{name}-gap-p99{suffix}"),
                daemon_cpu=rows[f"{name}-daemon-cpu{suffix}"],
                client_cpu=rows[f"{name}-client-cpu{suffix}"],
            )
        )
    return sorted(ways, key=lambda each: (each.workers, each.clients))


def rates_without_daemon(report: Report) -> dict[int, Result]:
    """Return the rows of the batches made without a daemon, by the workers beside them."""
    names = ((row, _WITHOUT.fullmatch(row.name)) for row in report.results)
    return {int(name[1] or 1): row for row, name in names if name is not None}


def bare_rows(report: Report) -> dict[str, Result]:
    """Return the rows of transport without decoding, by what they are called."""
    rows = report.rows
    return {words: rows[name] for name, words in _BARE.items() if name in rows}


def conclude(report: Report) -> list[str]:
    """Return what one client gets of what a core makes, then more workers, clients, transport."""
    ways = {
        (way.transport, way.clients, way.workers): way.rate
        for way in ways_of(report)
        if not way.is_copied
    }
    ipc, tcp = ways["ipc", 1, 1], ways["tcp", 1, 1]
    sentences = [
        f"One worker delivers {_rate(ipc)} images/s to a client on its host (ipc, read in place), "
        f"{format_ratio(ipc)} of what its core makes without a daemon, and {_rate(tcp)} over tcp, "
        f"{format_ratio(tcp)} of it."
    ]
    workers, clients = max(key[2] for key in ways), max(key[1] for key in ways)
    if workers > 1:
        way = ways["ipc", 1, workers]
        sentences.append(
            f"{workers} workers, which share their cores with the client, deliver {_rate(way)}, "
            f"{format_ratio(way)} times what one core makes without a daemon."
        )
    if clients > 1:
        shown = " and ".join(
            _compare_clients(transport, ways[transport, clients, 1], ways[transport, 1, 1])
            for transport in ("ipc", "tcp")
        )
        sentences.append(
            f"{clients} clients together get {shown} what one client gets from one worker."
        )
    bare, carried = report.rows.get("transport/tcp"), report.rows.get("stream/tcp-bytes")
    if bare is not None and carried is not None:
        times = bare.value / carried.value
        limit = "is not the limit" if times > 2 else "is near its limit"
        sentences.append(
            f"Transport {limit}: without decoding, tcp carries {format_number(bare.value)} GB/s, "
            f"{times:.1f} times what one worker makes."
        )
    return sentences


def describe_measured(report: Report) -> str:
    rounds, batches = report.measured.get("rounds"), report.measured.get("batches")
    if not isinstance(rounds, int) or not isinstance(batches, int):
        return "Values are medians."
    what = f"{count(batches, 'batch', 'batches')} of {report.measured.get('batch size')} images"
    if rounds == 1:
        return f"Measured once, with {what}: no spread is known, so use more --rounds to compare."
    few = f"Noise is shown from {FEWEST_ROUNDS} rounds on."
    return (
        f"Values are medians of {rounds} rounds with {what}; ratios are of the same rounds. "
        f"{BRACKETS if rounds >= FEWEST_ROUNDS else few}"
    )


def count(number: int, one: str, several: str = "") -> str:
    """Return "1 client", "2 clients"."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def _compare_clients(transport: str, many: Result, one: Result) -> str:
    """Return what many clients get of one's; both have the rate without a daemon as baseline."""
    noise = ""
    if many.interval is not None and one.interval is not None:
        low, high = max(many.interval[0], one.interval[0]), min(many.interval[1], one.interval[1])
        noise = ", within the noise" if low <= high else ""
    return f"{many.value / one.value:.2f} times ({transport}{noise})"


def _rate(row: Result | None) -> str:
    return "" if row is None else format_number(round(row.value))


def _format_ways(report: Report) -> list[str]:
    """Return the table of all ways, those of each number of workers after a line for them."""
    rows: list[Sequence[str]] = [
        ("", "", "of one", "gap p99", "daemon", "clients"),
        ("end to end", "images/s", "process", "ms", "µs/image", "µs/image"),
    ]
    without, ways = rates_without_daemon(report), ways_of(report)
    for workers in sorted({way.workers for way in ways}):
        rows.append((f"{count(workers, 'worker')}:", *("",) * 5))
        if workers in without:
            rows.append((f"  {WITHOUT_DAEMON}", _rate(without[workers]), "1", "", "", ""))
        for way in ways:
            if way.workers == workers:
                cells = map(_rate, (way.gap_p99, way.daemon_cpu, way.client_cpu))
                ratio = f"{way.rate.ratio or 0:.2f}"
                rows.append((f"  {way.words}", _rate(way.rate), ratio, *cells))
    return align(rows, left={0})


def _format_bare(report: Report) -> list[str]:
    bare = bare_rows(report).items()
    rows = [(f"  {words}", format_number(row.value)) for words, row in bare]
    return align([("transport alone, nothing decoded", "GB/s"), *rows], left={0}) if rows else []
