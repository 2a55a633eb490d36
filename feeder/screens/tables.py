"""The lists of both screens: node processes, clients, jobs, workers; and a line for each host."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text

from feeder.diagnosis.facts import WAITS_ONE
from feeder.diagnosis.interval import (
    ClientRow,
    HostInterval,
    JobInterval,
    NodeInterval,
    WorkerInterval,
)
from feeder.metrics.figures import count, duration, rate
from feeder.metrics.report import HostReport, NodeReport
from feeder.screens.sheet import Cell, Column, Sheet, percent, printable

HostAnswer = tuple[str, HostReport | str]
"""An endpoint with its host's report, or with the reason why there is none."""

Worker = tuple[NodeInterval, WorkerInterval]

_BAR_CELLS: Final = 12
_GRID_BAR_CELLS: Final = (5, 24)  # the narrowest and the widest
_GRID_GAP: Final = 3
_STATE_CELLS: Final = 5

_STATE_STYLES: Final = {
    "silent": "bold red",
    "hung": "bold red",
    "restarting": "bold red",
    "starting": "yellow",
}

_NODES: Final = (
    Column("node"),
    Column("state", is_left=True),
    Column("pid", rank=3),
    Column("CPUs", is_left=True, rank=2),
    Column("workers", rank=1),
    Column("busy", rank=1),
    Column("", is_left=True, is_extra=True, rank=5),
    Column("images/s"),
    Column("MB/s", rank=4),
    Column("restarts"),
)
_CLIENTS: Final = (
    Column("client", is_flexible=True, is_left=True),
    Column("job", is_flexible=True, is_left=True, rank=1),
    Column("dataset", is_flexible=True, is_left=True, rank=3),
    Column("nodes", rank=5),
    Column("images/s"),
    Column("waits"),
    Column("", is_left=True, is_extra=True, rank=6),
    Column("wanted", rank=2),
    Column("CPUs", rank=4),
    Column("batches", is_left=True, rank=2),
)
_JOBS: Final = (
    Column("job", is_flexible=True, is_left=True),
    Column("client", is_flexible=True, is_left=True, rank=2),
    Column("weight", is_extra=True, rank=3),
    Column("sessions", is_extra=True, rank=1),
    Column("batches", is_extra=True, rank=4),
    Column("images/s"),
    Column("of workers"),
    Column("", is_left=True, is_extra=True, rank=5),
)
_HOSTS: Final = (
    Column("endpoint", is_flexible=True, is_left=True),
    Column("name", is_flexible=True, is_left=True),
    Column("host", is_flexible=True, is_left=True, rank=2),
    Column("nodes", rank=3),
    Column("workers", rank=4),
    Column("clients", rank=1),
    Column("images/s"),
    Column("state", is_left=True),
)


def draw_nodes(host: HostInterval, sheet: Sheet) -> list[Text]:
    """A line of titles and one for each node process; none where there is only one, ready."""
    if [node.state for node in host.report.nodes] == ["ready"]:
        return []
    intervals = {node.number: node for node in host.nodes}
    rows = [_node_row(node, intervals.get(node.number), sheet) for node in host.report.nodes]
    return sheet.table(_NODES, rows)


def _node_row(node: NodeReport, interval: NodeInterval | None, sheet: Sheet) -> Sequence[Cell]:
    process: list[str] = [""] * 3
    rates: list[Cell] = [""] * 4
    if node.now is not None:
        cpus = sheet.cut(printable(node.now.cpus), 16)
        process = [str(node.now.pid), cpus, str(len(node.now.workers))]
    if interval is not None:
        busy = interval.busy_workers / max(1, interval.worker_count)
        moved = interval.sent_bytes_a_s + interval.lent_bytes_a_s
        bar = sheet.glyphs.bar(busy, _BAR_CELLS)
        rates = [percent(busy), bar, rate(interval.images_a_s), count(moved / 1e6)]
    state = Text(node.state, _STATE_STYLES.get(node.state, ""))
    restarts = Text(count(node.restarts), "yellow") if node.restarts else ""
    return [str(node.number), state, *process, *rates, restarts]


def draw_clients(clients: Sequence[ClientRow], host: HostInterval, sheet: Sheet) -> list[Text]:
    """A line of titles and one for each of ``clients``, if there are any."""
    if not clients:
        return []
    has_datasets = len(host.report.datasets) > 1
    has_nodes = len(host.report.nodes) > 1
    rows: list[Sequence[Cell]] = []
    for client in clients:
        wait = client.wait_share
        style = "yellow" if wait is not None and wait > WAITS_ONE else ""
        rows.append(
            [
                printable(client.name),
                printable(client.job),
                printable(client.dataset) if has_datasets else "",
                str(client.nodes) if has_nodes else "",
                rate(client.images_a_s),
                Text("no report" if wait is None else percent(wait) if wait else "", style),
                sheet.glyphs.bar(wait, _BAR_CELLS, style or "cyan") if wait else "",
                f"{client.wanted} of {client.window}" if client.window else "",
                f"{client.cpus:.1f}" if client.cpus >= 0.05 else "",
                transport(client.lent_share),
            ]
        )
    return sheet.table(_CLIENTS, rows)


def transport(lent_share: float) -> str:
    """How batches reach a client."""
    if lent_share >= 1.0:
        return "in place"
    return "copied" if lent_share <= 0.0 else f"{percent(lent_share)} in place"


def draw_jobs(jobs: Iterable[JobInterval], sheet: Sheet) -> list[Text]:
    """A line of titles and one for each job."""
    rows: list[Sequence[Cell]] = [
        [
            printable(job.name) or "(unnamed)",
            printable(job.account),
            f"{job.weight:g}",
            count(job.sessions),
            count(job.batches),
            rate(job.images_a_s),
            percent(job.worker_share),
            sheet.glyphs.bar(job.worker_share, _BAR_CELLS),
        ]
        for job in jobs
    ]
    return sheet.table(_JOBS, rows)


def draw_hosts(
    answers: Iterable[HostAnswer],
    warnings: Iterable[str],
    problems: Iterable[str],
    sheet: Sheet,
) -> list[Text]:
    """Names that are shared, a line for each host, and why others did not answer."""
    lines: list[Text] = []
    for warning in warnings:
        lines += sheet.words(printable(warning), "bold red", indent=2)
    lines += sheet.table(_HOSTS, [_host_row(*answer) for answer in answers])
    for problem in problems:
        lines += sheet.words(printable(problem), "red", indent=2)
    return lines


def _host_row(endpoint: str, answer: HostReport | str) -> Sequence[Cell]:
    if isinstance(answer, str):
        return [endpoint, *[""] * 6, Text("no report", "bold red")]
    host = HostInterval(answer)
    return [
        endpoint,
        printable(answer.name),
        printable(answer.host),
        str(len(answer.nodes)),
        str(host.workers),
        str(len(host.client_rows)),
        rate(host.images_a_s),
        Text(answer.verdict.kind, "bold red" if answer.verdict.is_problem else ""),
    ]


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
            is_idle, is_starting = worker.busy_share < 0.005, worker.state == "starting"
            style = "dim" if is_idle else "yellow" if is_starting else ""
            state = f" {worker.state[:_STATE_CELLS]:<{_STATE_CELLS}}" if has_states else ""
            cell = Text(f"{place}{state} ", style)
            if bar_cells > 0:
                cell.append_text(sheet.glyphs.bar(worker.busy_share, bar_cells)).append(" ")
            cell.append(f"{percent(worker.busy_share):>5}", style)
        grid.append(cell.append(" " * max(0, width - cell.cell_len)))
    lines = []
    rows = -(-len(grid) // columns)
    for row in range(rows):  # down the columns, as in a list of files
        line = Text(" " * _GRID_GAP).join(grid[row::rows])
        line.rstrip()
        lines.append(sheet.fit(line))
    return lines


def _places(workers: Sequence[Worker]) -> list[str]:
    """Each worker's number and CPU, aligned; with its node process where there are several."""
    nodes = {node.number for node, _ in workers}
    node_cells = len(str(max(nodes)))
    cells = len(str(max(worker.number for _, worker in workers)))
    cpu_cells = len(str(max(worker.cpu for _, worker in workers)))
    places = []
    for node, worker in workers:
        number = f"{worker.number:>{cells}}"
        if len(nodes) > 1:
            number = f"{node.number:>{node_cells}}/{worker.number:<{cells}}"
        cpu = f"cpu {worker.cpu:<{cpu_cells}}" if worker.cpu >= 0 else " " * (4 + cpu_cells)
        places.append(f"{number} {cpu}")
    return places
