"""All workers in columns: number, core, state and how busy they are, silent ones first."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from feeder.diagnosis.interval import NodeInterval
from feeder.diagnosis.worker_interval import WorkerInterval
from feeder.screens import figures
from feeder.screens.sheet import Sheet

_GAP: Final = 3
_BAR_CELLS: Final = (5, 24)
"""The narrowest and the widest bar."""
_STATE_CELLS: Final = 5

Worker = tuple[NodeInterval, WorkerInterval]


def draw_workers(workers: Sequence[Worker], sheet: Sheet, rows: int) -> list[Text]:
    """Return the lines of all workers; in ``rows`` lines if that is possible.

    Their states are left out where the columns would otherwise be too few.
    """
    if not workers:
        return []
    lines = _draw(workers, sheet, has_states=True)
    return lines if len(lines) <= rows else _draw(workers, sheet, has_states=False)


def _draw(workers: Sequence[Worker], sheet: Sheet, *, has_states: bool) -> list[Text]:
    digits = _digits(workers)
    places = [_place(worker, digits) for worker in workers]
    cells = max(map(len, places)) + (1 + _STATE_CELLS) * has_states + len("  100 %")
    columns = max(1, min(len(workers), (sheet.width + _GAP) // (cells + 1 + _BAR_CELLS[0] + _GAP)))
    width = (sheet.width + _GAP) // columns - _GAP
    bar_cells = min(_BAR_CELLS[1], width - cells - 1)
    drawn = [
        _cell(worker, place, bar_cells, width, sheet, has_states=has_states)
        for worker, place in zip(workers, places, strict=True)
    ]
    rows = -(-len(drawn) // columns)
    lines = []
    for row in range(rows):
        line = Text()
        for cell in drawn[row::rows]:  # down the columns, as in a list of files
            line.append(" " * (_GAP if line.cell_len else 0)).append_text(cell)
        line.rstrip()
        lines.append(sheet.fit(line))
    return lines


def _digits(workers: Sequence[Worker]) -> tuple[int, int, int]:
    """Return the widths of the numbers of node process, worker and CPU; 0: there is only one."""
    nodes = {node.number for node, _ in workers}
    return (
        len(str(max(nodes))) if len(nodes) > 1 else 0,
        len(str(max(worker.number for _, worker in workers))),
        len(str(max(worker.cpu for _, worker in workers))),
    )


def _place(each: Worker, digits: tuple[int, int, int]) -> str:
    """Return a worker's numbers and its CPU."""
    node, worker = each
    in_node, own, on_cpu = digits
    number = (
        f"{node.number:>{in_node}}/{worker.number:<{own}}" if in_node else f"{worker.number:>{own}}"
    )
    cpu = f"cpu {worker.cpu:<{on_cpu}}" if worker.cpu >= 0 else " " * (4 + on_cpu)
    return f"{number} {cpu}"


def _cell(
    each: Worker, place: str, bar_cells: int, width: int, sheet: Sheet, *, has_states: bool
) -> Text:
    _, worker = each
    if worker.state == "silent":
        text = f"{place} silent {figures.duration(worker.silent_s)}, pid {worker.pid}"
        cell = Text(sheet.cut(text, width), "bold red")
    else:
        style = (
            "dim" if worker.busy_share < 0.005 else "yellow" if worker.state == "starting" else ""
        )
        state = f" {worker.state[:_STATE_CELLS]:<{_STATE_CELLS}}" if has_states else ""
        cell = Text(f"{place}{state} ", style)
        if bar_cells > 0:
            cell.append_text(sheet.glyphs.bar(worker.busy_share, bar_cells)).append(" ")
        cell.append(f"{figures.percent(worker.busy_share):>5}", style)
    return cell.append(" " * max(0, width - cell.cell_len))
