"""What ``feeder top`` shows: a fixed head, and below it lists that share the remaining lines.

head    host, verdict, machine, curves of the last minutes, stages
lists   node processes, clients, workers: all scroll together where they are too long
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from feeder.metrics.report import HistoryPoint, HostReport
from feeder.screens import figures
from feeder.screens.frame import Frame, share_lines, window
from feeder.screens.host_tables import draw_clients, draw_nodes
from feeder.screens.host_view import HostView
from feeder.screens.sheet import Sheet
from feeder.screens.status_screen import draw_machine, draw_verdict
from feeder.screens.worker_grid import draw_workers

STAGE_STYLES: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
_VERDICT_LINES_MAX: Final = 4
_NAME_CELLS: Final = 9
"""Of a curve's name, where labels stand above their contents."""
_VALUE_CELLS: Final = 8
_ROWS_MIN: Final = 2
"""Of each list, before there are curves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    titles: Sequence[Text]
    rows: Sequence[Text]


def draw_top(report: HostReport, sheet: Sheet, height: int, offset: int, note: Text) -> Frame:
    """Return a frame of at most ``height`` lines, its lists moved by ``offset`` lines.

    ``note`` is shown at the right of the first line, such as the keys.
    """
    view = HostView(report)
    lines = [_title(view, sheet, note), *draw_verdict(report, sheet)[:_VERDICT_LINES_MAX]]
    room = max(0, height - len(lines))
    lists = _lists(view, sheet, room)
    titles = sum(len(each.titles) + 1 for each in lists)  # and an empty line before
    least = titles + sum(min(len(each.rows), _ROWS_MIN) for each in lists)
    machine = draw_machine(view, sheet, "machine")
    for part in (_curves(view, sheet), _stages(view, sheet), machine):
        if room - len(part) >= least:  # on a low screen the lists come first
            lines += part
            room -= len(part)
    rooms = share_lines(max(0, room - titles), [len(each.rows) for each in lists])
    scroll_max = 0
    for each, lines_shown in zip(lists, rooms, strict=True):
        shown, last = window(each.rows, lines_shown, offset, sheet)
        scroll_max = max(scroll_max, last)
        lines += [Text(), *each.titles, *shown]
    return Frame(lines=lines[:height], scroll_max=scroll_max)


def _title(view: HostView, sheet: Sheet, note: Text) -> Text:
    report = view.report
    left = Text.assemble((figures.printable(report.host), "bold"))
    pieces = [f"feeder {report.feeder_version}", f"up {figures.duration(report.uptime_s)}"]
    if view.interval.seconds:
        pieces.append(f"rates over {figures.duration(view.interval.seconds)}")
    for piece in pieces:
        if left.cell_len + 4 + len(piece) + note.cell_len <= sheet.width:
            left.append(f"  {figures.printable(piece)}")
    blank = max(1, sheet.width - left.cell_len - note.cell_len)
    return sheet.fit(left.append(" " * blank).append_text(note))


def _curves(view: HostView, sheet: Sheet) -> list[Text]:
    history = view.report.history
    interval = view.interval
    wait = interval.wait_share
    rows = [
        ("images/s", figures.rate(interval.images_a_s), [p.images_a_s for p in history], 0.0),
        ("busy", figures.percent(interval.busy_share), [p.busy_share for p in history], 1.0),
    ]
    if wait is not None:
        waits = [p.wait_share for p in history]
        rows.append(("wait", figures.percent(wait), waits, 1.0))
    minutes = _span(history)
    tail = f"  {minutes}" if minutes and sheet.width >= 60 else ""
    room = sheet.content_cells if sheet.has_labels else sheet.width - _NAME_CELLS
    cells = room - _VALUE_CELLS - 2 - len(tail)
    lines = []
    for name, value, values, top in rows:
        line = Text(f"{value:>{_VALUE_CELLS}}")
        if len(values) > 1 and cells >= 8:
            style = "yellow" if name == "wait" else "green" if name == "images/s" else "cyan"
            line.append("  ").append_text(
                sheet.glyphs.curve(values, cells, top or max(values), style)
            )
            line.append(tail if name == "images/s" else "", "dim")
        if sheet.has_labels:
            lines += sheet.stack(name, [line])
        else:
            lines.append(sheet.fit(Text.assemble((f"{name:<{_NAME_CELLS}}", "bold"), line)))
    return lines


def _span(history: Sequence[HistoryPoint]) -> str:
    if len(history) < 2:
        return ""
    return figures.duration(round(history[-1].clock_s - history[0].clock_s))


def _stages(view: HostView, sheet: Sheet) -> list[Text]:
    stages = {name: share for name, share in view.interval.stages.items() if share >= 0.005}
    if not stages:
        return []
    rest = 1.0 - sum(stages.values())
    if rest >= 0.005:
        stages["other"] = rest
    styles = [STAGE_STYLES[number % len(STAGE_STYLES)] for number in range(len(stages))]
    bar = sheet.glyphs.stack(list(stages.values()), sheet.content_cells, styles)
    legend = [
        Text.assemble(
            (sheet.glyphs.key(number), styles[number]),
            f" {figures.printable(name)} {figures.percent(share)}",
        )
        for number, (name, share) in enumerate(stages.items())
    ]
    return sheet.stack("stages", [bar, *sheet.fill(legend)])


def _lists(view: HostView, sheet: Sheet, room: int) -> list[_List]:
    lists: list[_List] = []
    if view.has_node_list:
        titles, *rows = draw_nodes(view, sheet)
        lists.append(_List(titles=[titles], rows=rows))
    if view.clients:
        titles, *rows = draw_clients(view.clients, view, sheet)
        lists.append(_List(titles=[titles], rows=rows))
    if view.workers:
        taken = sum(len(each.titles) + 1 for each in lists) + 2
        needs = [len(each.rows) for each in lists]
        rows = draw_workers(view.workers, sheet, share_lines(room - taken, [*needs, 10_000])[-1])
        busy = f"busy {figures.percent(view.interval.busy_share)}"
        title = Text(f"{figures.plural(len(view.workers), 'worker')}, {busy}", "dim")
        lists.append(_List(titles=[title], rows=rows))
    return lists
