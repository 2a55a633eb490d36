"""The report of ``feeder-bench stream``: the conclusion, each way to a client, then all rows.

A way is images over ipc or tcp to some clients from some workers. It is compared with the same
batches made in the same rounds by one process without a daemon (the row ``sample/whole``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of images to clients, with its rows."""

    transport: str
    """"ipc" or "tcp"."""
    is_copied: bool
    """Over an ipc socket: the client does not map the slots."""
    clients: int
    workers: int
    rate: Result
    gap_p99: Result | None
    """The time between batches; None where no client got two in a row."""
    daemon_cpu: Result
    client_cpu: Result

    @property
    def words(self) -> str:
        """The way as text and picture call it."""
        how = "ipc, copied" if self.is_copied else self.transport
        if self.transport == "ipc" and not self.is_copied:
            how = "ipc, in place"
        return f"{count(self.clients, 'client')}, {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport(Report):
    """The report of this bench."""

    def to_text(self) -> str:
        """Return conclusion, tables in words, header and all rows, with a newline at its end."""
        lines = wrap([*conclude(self), describe_measured(self)])
        lines += ["", *_format_ways(self), "", *_format_bare(self), ""]
        lines.append("All rows, as --json has them; sample/whole is made without a daemon:")
        return "\n".join(lines) + "\n" + Report.to_text(self)


def ways_of(report: Report) -> list[Way]:
    """Return all ways: by workers, then by clients, in the order of their rows."""
    rows = {row.name: row for row in report.results}
    ways = []
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
    return {
        int(name[1] or 1): row
        for row in report.results
        if (name := _WITHOUT.fullmatch(row.name)) is not None
    }


def bare_rows(report: Report) -> dict[str, Result]:
    """Return the rows of transport without decoding, by what they are called."""
    rows = {row.name: row for row in report.results}
    return {words: rows[name] for name, words in _BARE.items() if name in rows}


def conclude(report: Report) -> list[str]:
    """Return what one client gets of what a core makes, then more workers, clients, transport."""
    ways = [way for way in ways_of(report) if not way.is_copied]
    single = {way.transport: way for way in ways if (way.clients, way.workers) == (1, 1)}
    ipc, tcp = single["ipc"], single["tcp"]
    sentences = [
        f"One worker delivers {_rate(ipc.rate)} images/s to a client on its host (ipc, read in "
        f"place), {format_ratio(ipc.rate)} of what its core makes without a daemon, and "
        f"{_rate(tcp.rate)} over tcp, {format_ratio(tcp.rate)} of it."
    ]
    most_workers = max(way.workers for way in ways)
    if most_workers > 1:
        key = ("ipc", 1, most_workers)
        way = next(way for way in ways if (way.transport, way.clients, way.workers) == key)
        sentences.append(
            f"{most_workers} workers, which share their cores with the client, deliver "
            f"{_rate(way.rate)}, {format_ratio(way.rate)} times what one core makes without a "
            "daemon."
        )
    most_clients = max(way.clients for way in ways)
    if most_clients > 1:
        shown = " and ".join(
            _compare_clients(way.transport, way.rate, single[way.transport].rate)
            for way in ways
            if (way.clients, way.workers) == (most_clients, 1)
        )
        sentences.append(
            f"{most_clients} clients together get {shown} what one client gets from one worker."
        )
    bare = bare_rows(report).get(_BARE["transport/tcp"])
    carried = next((row for row in report.results if row.name == "stream/tcp-bytes"), None)
    if bare is not None and carried is not None:
        times = bare.value / carried.value
        limit = "is not the limit" if times > 2 else "is near its limit"
        sentences.append(
            f"Transport {limit}: without decoding, tcp carries {format_number(bare.value)} GB/s, "
            f"{times:.1f} times what one worker makes."
        )
    return sentences


def describe_measured(report: Report) -> str:
    """Return rounds, batches and the machine's cores as a sentence."""
    rounds, batches = report.measured.get("rounds"), report.measured.get("batches")
    if not isinstance(rounds, int) or not isinstance(batches, int):
        return "Values are medians."
    what = f"{count(batches, 'batch', 'batches')} of {report.measured.get('batch size')} images"
    if rounds == 1:
        return f"Measured once, with {what}: no spread is known, so use more --rounds to compare."
    noise = f"Noise is shown from {FEWEST_ROUNDS} rounds on."
    if rounds >= FEWEST_ROUNDS:
        noise = BRACKETS
    return (
        f"Values are medians of {rounds} rounds with {what}; ratios are of the same rounds. {noise}"
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


def _rate(row: Result) -> str:
    return format_number(round(row.value))


def _ratio(row: Result) -> str:
    return f"{row.ratio or 0:.2f}"


def _format_ways(report: Report) -> list[str]:
    """Return the table of all ways, those of each number of workers after a line for them."""
    head = ("", "", "of one", "gap p99", "daemon", "clients")
    below = ("end to end", "images/s", "process", "ms", "µs/image", "µs/image")
    rows: list[Sequence[str]] = [head, below]
    without = rates_without_daemon(report)
    ways = ways_of(report)
    for workers in sorted({way.workers for way in ways}):
        rows.append((f"{count(workers, 'worker')}:", *("",) * 5))
        if workers in without:
            rows.append((f"  {WITHOUT_DAEMON}", _rate(without[workers]), "1", "", "", ""))
        rows += [
            (
                f"  {way.words}",
                _rate(way.rate),
                _ratio(way.rate),
                "" if way.gap_p99 is None else format_number(round(way.gap_p99.value)),
                format_number(round(way.daemon_cpu.value)),
                format_number(round(way.client_cpu.value)),
            )
            for way in ways
            if way.workers == workers
        ]
    return align(rows, left={0})


def _format_bare(report: Report) -> list[str]:
    rows = [("transport alone, nothing decoded", "GB/s")]
    rows += [(f"  {words}", format_number(row.value)) for words, row in bare_rows(report).items()]
    return align(rows, left={0}) if len(rows) > 1 else []
