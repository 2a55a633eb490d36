"""The lists of both screens: node processes, clients, jobs, workers; and a line for each host."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from rich.text import Text

from feeder.diagnosis.facts import WAITS_ONE
from feeder.diagnosis.interval import (
    ClientRow,
    HostInterval,
    JobInterval,
    NodeInterval,
    WorkerInterval,
)
from feeder.metrics.figures import count, duration, rate, size
from feeder.metrics.report import HostReport
from feeder.screens.sheet import Cell, Column, Sheet, percent, printable

HostAnswer = tuple[str, HostReport | str]
"""An endpoint with its host's report, or with the reason why there is none."""

Worker = tuple[NodeInterval, WorkerInterval]

_BAR_CELLS: Final = 12
_GRID_BAR_CELLS: Final = (5, 24)  # the narrowest and the widest
_GRID_GAP: Final = 3
_STATE_CELLS: Final = 5

_STYLES: Final = {
    **dict.fromkeys(("silent", "hung", "restarting"), "bold red"),
    "starting": "yellow",
}
_BAR: Final = {"is_left": True, "is_extra": True}

_Value = TypeVar("_Value")


def _column(
    title: str, values: Iterable[_Value | None], draw: Callable[[_Value], Cell], **kind: Any
) -> Column:
    """A column with a cell for each value, empty where there is none."""
    return Column(title, ["" if value is None else draw(value) for value in values], **kind)


def draw_nodes(host: HostInterval, sheet: Sheet) -> list[Text]:
    """A line of titles and one for each node process; none where there is only one, ready."""
    nodes = host.report.nodes
    if [node.state for node in nodes] == ["ready"]:
        return []
    by_number = {node.number: node for node in host.nodes}
    records = [node.now for node in nodes]
    rates = [by_number.get(node.number) for node in nodes]
    restarts = [node.restarts or None for node in nodes]
    return sheet.table(
        _column("node", nodes, lambda n: str(n.number)),
        _column("state", nodes, lambda n: Text(n.state, _STYLES.get(n.state, "")), is_left=True),
        _column("pid", records, lambda r: str(r.pid), rank=3),
        _column("CPUs", records, lambda r: sheet.cut(printable(r.cpus), 16), is_left=True, rank=2),
        _column("workers", records, lambda r: str(len(r.workers)), rank=1),
        _column("busy", rates, lambda r: percent(r.busy_share), rank=1),
        _column("", rates, lambda r: sheet.glyphs.bar(r.busy_share, _BAR_CELLS), **_BAR, rank=5),
        _column("images/s", rates, lambda r: rate(r.images_a_s)),
        _column(
            "MB/s", rates, lambda r: count((r.sent_bytes_a_s + r.lent_bytes_a_s) / 1e6), rank=4
        ),
        _column("restarts", restarts, lambda number: Text(count(number), "yellow")),
    )


def draw_clients(clients: Sequence[ClientRow], host: HostInterval, sheet: Sheet) -> list[Text]:
    """A line of titles and one for each of ``clients``."""
    by_dataset = clients if len(host.report.datasets) > 1 else ()
    by_node = clients if len(host.report.nodes) > 1 else ()
    windows = [client if client.window else None for client in clients]
    orders = [client if client.lanes else None for client in clients]
    waits = [(c.wait_share, "yellow" if (c.wait_share or 0.0) > WAITS_ONE else "") for c in clients]
    bars = [sheet.glyphs.bar(w, _BAR_CELLS, style or "cyan") if w else "" for w, style in waits]
    return sheet.table(
        _column("client", clients, lambda c: printable(c.name), is_flexible=True),
        _column("job", clients, lambda c: printable(c.job), is_flexible=True, rank=1),
        _column("dataset", by_dataset, lambda c: printable(c.dataset), is_flexible=True, rank=3),
        _column("nodes", by_node, lambda c: str(c.nodes), rank=5),
        _column("images/s", clients, lambda c: rate(c.images_a_s)),
        Column("waits", [Text(_name_wait(wait), style) for wait, style in waits]),
        Column("", bars, **_BAR, rank=6),
        _column("wanted", windows, lambda c: f"{c.wanted} of {c.window}", rank=2),
        _column("drawn from", orders, _name_order, rank=5),
        _column("CPUs", clients, lambda c: f"{c.cpus:.1f}" if c.cpus >= 0.05 else "", rank=4),
        _column("batches", clients, lambda c: transport(c.lent_share), is_left=True, rank=2),
    )


def _name_order(client: ClientRow) -> str:
    """The lanes of its batches, and their working set."""
    lanes = f"{count(client.lanes)} lane{'s' * (client.lanes != 1)}"
    return f"{lanes}, {size(client.working_set_bytes)}"


def _name_wait(share: float | None) -> str:
    return "no report" if share is None else percent(share) if share else ""


def transport(lent_share: float) -> str:
    """How batches reach a client."""
    if lent_share >= 1.0:
        return "in place"
    return "copied" if lent_share <= 0.0 else f"{percent(lent_share)} in place"


def draw_jobs(jobs: Sequence[JobInterval], sheet: Sheet) -> list[Text]:
    """A line of titles and one for each job; none where there is only one, unnamed."""
    if [job.name for job in jobs] == [""]:
        return []
    return sheet.table(
        _column("job", jobs, lambda j: printable(j.name) or "(unnamed)", is_flexible=True),
        _column("client", jobs, lambda j: printable(j.account), is_flexible=True, rank=2),
        _column("weight", jobs, lambda j: f"{j.weight:g}", is_extra=True, rank=3),
        _column("sessions", jobs, lambda j: count(j.sessions), is_extra=True, rank=1),
        _column("batches", jobs, lambda j: count(j.batches), is_extra=True, rank=4),
        _column("images/s", jobs, lambda j: rate(j.images_a_s)),
        _column("of workers", jobs, lambda j: percent(j.worker_share)),
        _column("", jobs, lambda j: sheet.glyphs.bar(j.worker_share, _BAR_CELLS), **_BAR, rank=5),
    )


def draw_hosts(
    answers: Sequence[HostAnswer],
    warnings: Iterable[str],
    problems: Iterable[str],
    sheet: Sheet,
) -> list[Text]:
    """Names that are shared, a line for each host, and why others did not answer."""
    lines: list[Text] = []
    for warning in warnings:
        lines += sheet.words(printable(warning), "bold red", indent=2)
    hosts = [None if isinstance(answer, str) else HostInterval(answer) for _, answer in answers]
    states = []
    for host in hosts:
        is_well = host is not None and not host.report.verdict.is_problem
        kind = "no report" if host is None else host.report.verdict.kind
        states.append(Text(kind, "" if is_well else "bold red"))
    lines += sheet.table(
        _column("endpoint", answers, lambda answer: answer[0], is_flexible=True),
        _column("name", hosts, lambda h: printable(h.report.name), is_flexible=True),
        _column("host", hosts, lambda h: printable(h.report.host), is_flexible=True, rank=2),
        _column("nodes", hosts, lambda h: str(len(h.report.nodes)), rank=3),
        _column("workers", hosts, lambda h: str(h.workers), rank=4),
        _column("clients", hosts, lambda h: str(len(h.clients)), rank=1),
        _column("images/s", hosts, lambda h: rate(h.images_a_s)),
        Column("state", states, is_left=True),
    )
    for problem in problems:
        lines += sheet.words(printable(problem), "red", indent=2)
    return lines


def draw_workers(workers: Sequence[Worker], sheet: Sheet, rows: int) -> list[Text]:
    """All workers in columns: number, CPU, state and how busy they are; in ``rows`` lines if that
    is possible without their states."""
    lines = _draw_grid(workers, sheet, has_states=True)
    return lines if len(lines) <= rows else _draw_grid(workers, sheet, has_states=False)


def _draw_grid(workers: Sequence[Worker], sheet: Sheet, *, has_states: bool) -> list[Text]:
    places = _places(workers)
    cells = max(map(len, places)) + (1 + _STATE_CELLS) * has_states + len("  100 %")
    narrowest, widest = _GRID_BAR_CELLS
    room = sheet.width + _GRID_GAP
    columns = max(1, min(len(workers), room // (cells + 1 + narrowest + _GRID_GAP)))
    width = room // columns - _GRID_GAP
    bar_cells = min(widest, width - cells - 1)
    grid = []
    for (_, worker), place in zip(workers, places, strict=True):
        if worker.state == "silent":
            text = f"{place} silent {duration(worker.silent_s)}, pid {worker.pid}"
            cell = Text(sheet.cut(text, width), "bold red")
        else:
            style = "yellow" if worker.state == "starting" else ""
            style = "dim" if worker.busy_share < 0.005 else style
            state = f" {worker.state[:_STATE_CELLS]:<{_STATE_CELLS}}" if has_states else ""
            cell = Text(f"{place}{state} ", style)
            if bar_cells > 0:
                cell.append_text(sheet.glyphs.bar(worker.busy_share, bar_cells)).append(" ")
            cell.append(f"{percent(worker.busy_share):>5}", style)
        grid.append(cell.append(" " * max(0, width - cell.cell_len)))
    rows = -(-len(grid) // columns)  # down the columns, as in a list of files
    return [sheet.join(grid[row::rows], " " * _GRID_GAP) for row in range(rows)]


def _places(workers: Sequence[Worker]) -> list[str]:
    """Each worker's number and CPU, aligned; with its node process where there are several."""
    nodes = max(len(str(node.number)) for node, _ in workers)
    cells = max(len(str(worker.number)) for _, worker in workers)
    cpu_cells = max(len(str(worker.cpu)) for _, worker in workers)
    has_nodes = len({node.number for node, _ in workers}) > 1
    places = []
    for node, worker in workers:
        number = f"{node.number:>{nodes}}/{worker.number:<{cells}}"
        if not has_nodes:
            number = f"{worker.number:>{cells}}"
        cpu = f"cpu {worker.cpu}" if worker.cpu >= 0 else ""
        places.append(f"{number} {cpu:<{4 + cpu_cells}}")
    return places
