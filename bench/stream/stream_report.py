"""The report of ``feeder-bench stream``: the conclusion, each way to a client, then all rows.

A way is images over ipc or tcp to some clients from some workers. It is compared with the same
batches made in the same rounds by one process without a daemon (the row ``sample/whole``).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..report import RATE, Report, Result, align, format_number, format_ratio, row_table

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

    how: str  # "ipc, in place", "ipc, copied" or "tcp"
    clients: int
    workers: int
    rate: Result
    gap_p99: Result | None  # the time between batches; None where no client got two in a row
    daemon_cpu: Result
    client_cpu: Result

    @property
    def words(self) -> str:
        return f"{count(self.clients, 'client')}, {self.how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport(Report):
    def conclude(self) -> list[str]:
        ways = {(way.how, way.clients, way.workers): way.rate for way in ways_of(self)}
        ipc, tcp = ways["ipc, in place", 1, 1], ways["tcp", 1, 1]
        sentences = [
            f"One worker delivers {_rate(ipc)} images/s to a client on its host (ipc, read in "
            f"place), {format_ratio(ipc)} of what its core makes without a daemon, and "
            f"{_rate(tcp)} over tcp, {format_ratio(tcp)} of it."
        ]
        workers, clients = max(key[2] for key in ways), max(key[1] for key in ways)
        if workers > 1:
            way = ways["ipc, in place", 1, workers]
            sentences.append(
                f"{workers} workers, which share their cores with the client, deliver "
                f"{_rate(way)}, {format_ratio(way)} times what one core makes without a daemon."
            )
        if clients > 1:
            of_ipc, of_tcp = (
                ways[how, clients, 1].value / ways[how, 1, 1].value
                for how in ("ipc, in place", "tcp")
            )
            sentences.append(
                f"{clients} clients together get {of_ipc:.2f} times (ipc) and {of_tcp:.2f} times "
                "(tcp) what one client gets from one worker."
            )
        bare, carried = self.rows.get("transport/tcp"), self.rows.get("stream/tcp-bytes")
        if bare is not None and carried is not None:
            times = bare.value / carried.value
            limit = "is not the limit" if times > 2 else "is near its limit"
            sentences.append(
                f"Transport {limit}: without decoding, tcp carries {format_number(bare.value)} "
                f"GB/s, {times:.1f} times what one worker makes."
            )
        return sentences

    def tables(self) -> Iterator[list[str]]:
        rows: list[Sequence[str]] = [
            ("", "", "of one", "gap p99", "daemon", "clients"),
            ("end to end", "images/s", "process", "ms", "µs/image", "µs/image"),
        ]
        without, ways = rates_without_daemon(self), ways_of(self)
        for workers in sorted({way.workers for way in ways}):
            rows.append((f"{count(workers, 'worker')}:", *("",) * 5))
            if workers in without:
                rows.append((f"  {WITHOUT_DAEMON}", _rate(without[workers]), "1", "", "", ""))
            for way in ways:
                if way.workers == workers:
                    cells = map(_rate, (way.gap_p99, way.daemon_cpu, way.client_cpu))
                    ratio = f"{way.rate.ratio or 0:.2f}"
                    rows.append((f"  {way.words}", _rate(way.rate), ratio, *cells))
        yield align(rows)
        bare = bare_rows(self).items()
        rows = [(f"  {words}", format_number(row.value)) for words, row in bare]
        yield align([("transport alone, nothing decoded", "GB/s"), *rows])
        yield ["sample/whole is made without a daemon:", "", *row_table(self.results)]


def ways_of(report: Report) -> list[Way]:
    """Return all ways: by workers, then by clients, in the order of their rows."""
    rows, ways = report.rows, []
    for row in report.results:
        way = _WAY.fullmatch(row.name)
        if way is None or row.unit != RATE:
            continue
        suffix = way[4] or ""
        name = row.name.removesuffix(suffix)
        how = "tcp" if way[1] == "tcp" else "ipc, copied" if way[2] else "ipc, in place"
        ways.append(
            Way(
                how=how,
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


def count(number: int, what: str) -> str:
    """Return "1 client", "2 clients"."""
    return f"{number} {what}{'s' * (number != 1)}"


def _rate(row: Result | None) -> str:
    return "" if row is None else format_number(round(row.value))
