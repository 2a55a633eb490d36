"""The tables that both screens have: node processes and clients."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from feeder.diagnosis.interval import NodeInterval
from feeder.diagnosis.job_interval import JobInterval
from feeder.metrics.report import NodeReport
from feeder.screens import figures
from feeder.screens.host_view import ClientRow, HostView
from feeder.screens.sheet import Column, Sheet

_BAR_CELLS: Final = 12
_WAITS: Final = 0.05
"""A client that waits for a larger share of its time is marked: as in feeder.diagnosis.facts."""

_STATE_STYLES: Final = {
    "silent": "bold red",
    "hung": "bold red",
    "restarting": "bold red",
    "starting": "yellow",
}


def draw_nodes(view: HostView, sheet: Sheet) -> list[Text]:
    """Return a line of titles and one for each node process."""
    columns = [
        Column("node"),
        Column("state", is_left=True),
        Column("pid", rank=3),
        Column("CPUs", is_left=True, rank=2),
        Column("workers", rank=1),
        Column("busy", rank=1),
        Column("", is_left=True, is_extra=True, rank=5),
        Column("images/s"),
        Column("MB/s", rank=4),
    ]
    has_restarts = any(node.restarts for node, _ in view.nodes)
    if has_restarts:
        columns.append(Column("restarts"))
    rows = [
        _node_row(node, interval, sheet) + ([_restarts(node)] if has_restarts else [])
        for node, interval in view.nodes
    ]
    return sheet.table(columns, rows)


def _node_row(node: NodeReport, interval: NodeInterval | None, sheet: Sheet) -> list[str | Text]:
    state = Text(node.state, _STATE_STYLES.get(node.state, ""))
    start: list[str | Text] = [str(node.number), state]
    if node.now is None:
        return [*start, *([""] * 7)]
    start += [str(node.now.pid), sheet.cut(figures.printable(node.now.cpus), 16)]
    start.append(str(len(node.now.workers)))
    if interval is None:
        return [*start, "", "", "", ""]
    busy = min(1.0, interval.busy_workers / interval.worker_count) if interval.worker_count else 0.0
    moved = interval.sent_bytes_a_s + interval.lent_bytes_a_s
    return [
        *start,
        figures.percent(busy),
        sheet.glyphs.bar(busy, _BAR_CELLS),
        figures.rate(interval.images_a_s),
        figures.count(moved / 1e6),
    ]


def _restarts(node: NodeReport) -> str | Text:
    return Text(figures.count(node.restarts), "yellow") if node.restarts else ""


def draw_clients(clients: Sequence[ClientRow], view: HostView, sheet: Sheet) -> list[Text]:
    """Return a line of titles and one for each of ``clients``."""
    columns = [Column("client", is_flexible=True, is_left=True)]
    has_jobs = any(client.job for client in clients)
    if has_jobs:
        columns.append(Column("job", is_flexible=True, is_left=True, rank=1))
    has_datasets = len(view.report.datasets) > 1
    has_nodes = len(view.report.nodes) > 1
    if has_datasets:
        columns.append(Column("dataset", is_flexible=True, is_left=True, rank=3))
    if has_nodes:
        columns.append(Column("nodes", rank=5))
    columns += [
        Column("images/s"),
        Column("waits"),
        Column("", is_left=True, is_extra=True, rank=6),
        Column("wanted", rank=2),
        Column("CPUs", rank=4),
        Column("batches", is_left=True, rank=2),
    ]
    rows = []
    for client in clients:
        row: list[str | Text] = [figures.printable(client.name)]
        if has_jobs:
            row.append(figures.printable(client.job))
        if has_datasets:
            row.append(figures.printable(client.dataset))
        if has_nodes:
            row.append(str(client.nodes))
        rows.append([*row, *_client_cells(client, sheet)])
    return sheet.table(columns, rows)


def _client_cells(client: ClientRow, sheet: Sheet) -> list[str | Text]:
    wait = client.wait_share
    style = "yellow" if wait is not None and wait > _WAITS else ""
    shown = "no report" if wait is None else figures.percent(wait) if wait else ""
    return [
        figures.rate(client.images_a_s),
        Text(shown, style),
        "" if not wait else sheet.glyphs.bar(wait, _BAR_CELLS, style or "cyan"),
        f"{client.wanted} of {client.window}" if client.window else "",
        f"{client.cpus:.1f}" if client.cpus >= 0.05 else "",
        transport(client.lent_share),
    ]


def draw_jobs(jobs: Sequence[JobInterval], sheet: Sheet) -> list[Text]:
    """Return a line of titles and one for each job."""
    columns = [
        Column("job", is_flexible=True, is_left=True),
        Column("client", is_flexible=True, is_left=True, rank=2),
        Column("weight", is_extra=True, rank=3),
        Column("sessions", is_extra=True, rank=1),
        Column("batches", is_extra=True, rank=4),
        Column("images/s"),
        Column("of workers"),
        Column("", is_left=True, is_extra=True, rank=5),
    ]
    rows: list[list[str | Text]] = [
        [
            figures.printable(job.name) or "(unnamed)",
            figures.printable(job.account),
            f"{job.weight:g}",
            figures.count(job.sessions),
            figures.count(job.batches),
            figures.rate(job.images_a_s),
            figures.percent(job.worker_share),
            sheet.glyphs.bar(job.worker_share, _BAR_CELLS),
        ]
        for job in jobs
    ]
    return sheet.table(columns, rows)


def transport(lent_share: float) -> str:
    """Return how batches reach a client."""
    if lent_share >= 1.0:
        return "in place"
    return "copied" if lent_share <= 0.0 else f"{figures.percent(lent_share)} in place"
