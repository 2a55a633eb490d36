"""What ``feeder top`` shows: a fixed head, and below it lists that share the remaining lines.

head    host, verdict, curves of the last minutes, stages, store, machine
lists   node processes, clients, workers: all scroll together where they are too long
"""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from feeder.diagnosis.interval import HostInterval
from feeder.metrics.figures import duration, plural, rate
from feeder.metrics.report import HostReport
from feeder.screens.sheet import Sheet, percent, printable
from feeder.screens.status_screen import draw_machine, draw_store, draw_verdict
from feeder.screens.tables import draw_clients, draw_nodes, draw_workers

STAGE_STYLES: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
_VERDICT_LINES_MAX: Final = 4
_NAME_CELLS: Final = 9  # for a curve's name, where labels stand above their contents
_VALUE_CELLS: Final = 8
_ROWS_MIN: Final = 2  # for each list, before there are curves

_List = tuple[Text, Sequence[Text]]  # a line of titles, and rows that scroll


def draw_top(
    report: HostReport, sheet: Sheet, height: int, offset: int, note: Text
) -> tuple[list[Text], int]:
    """At most ``height`` lines, the lists moved by ``offset`` lines; and the largest offset.

    ``note`` is shown at the right of the first line, such as the keys.
    """
    host = HostInterval(report)
    lines = [_title(host, sheet, note), *draw_verdict(report, sheet)[:_VERDICT_LINES_MAX]]
    room = max(0, height - len(lines))
    lists = _lists(host, sheet, room)
    titles = 2 * len(lists)  # and an empty line before each
    least = titles + sum(min(len(rows), _ROWS_MIN) for _, rows in lists)
    store, machine = draw_store(host, sheet, "store"), draw_machine(host, sheet, "machine")
    for part in (_curves(host, sheet), _stages(host, sheet), store, machine):
        if room - len(part) >= least:  # on a low screen the lists come first
            lines += part
            room -= len(part)
    rooms = share_lines(max(0, room - titles), [len(rows) for _, rows in lists])
    scroll_max = 0
    for (title, rows), list_room in zip(lists, rooms, strict=True):
        in_view, last = _window(rows, list_room, offset, sheet)
        scroll_max = max(scroll_max, last)
        lines += [Text(), title, *in_view]
    return lines[:height], scroll_max


def _title(host: HostInterval, sheet: Sheet, note: Text) -> Text:
    report = host.report
    left = Text.assemble((printable(report.host), "bold"))
    pieces = [f"feeder {report.feeder_version}", f"up {duration(report.uptime_s)}"]
    if host.seconds:
        pieces.append(f"rates over {duration(host.seconds)}")
    for piece in pieces:
        if left.cell_len + 4 + len(piece) + note.cell_len <= sheet.width:
            left.append(f"  {printable(piece)}")
    return sheet.spread(left.append(" "), note)


def _curves(host: HostInterval, sheet: Sheet) -> list[Text]:
    history = host.report.history
    images = [point.images_a_s for point in history]
    rows = [("images/s", rate(host.images_a_s), images, max(images, default=0.0), "green")]
    busy = [point.busy_share for point in history]
    rows.append(("busy", percent(host.busy_share), busy, 1.0, "cyan"))
    if host.wait_share is not None:
        waits = [point.wait_share for point in history]
        rows.append(("wait", percent(host.wait_share), waits, 1.0, "yellow"))
    tail = ""
    if len(history) > 1 and sheet.width >= 60:
        tail = f"  {duration(round(history[-1].clock_s - history[0].clock_s))}"
    room = sheet.content_cells if sheet.has_labels else sheet.width - _NAME_CELLS
    cells = room - _VALUE_CELLS - 2 - len(tail)
    lines = []
    for name, value, values, top, style in rows:
        line = Text(f"{value:>{_VALUE_CELLS}}")
        if len(values) > 1 and cells >= 8:
            line.append("  ").append_text(sheet.glyphs.curve(values, cells, top, style))
            line.append(tail if name == "images/s" else "", "dim")
        beside = sheet.fit(Text.assemble((f"{name:<{_NAME_CELLS}}", "bold"), line))
        lines += sheet.stack(name, [line]) if sheet.has_labels else [beside]
    return lines


def _stages(host: HostInterval, sheet: Sheet) -> list[Text]:
    stages = {name: share for name, share in host.stages.items() if share >= 0.005}
    if not stages:
        return []
    rest = 1.0 - sum(stages.values())
    if rest >= 0.005:
        stages["other"] = rest
    bar = sheet.glyphs.stack(list(stages.values()), sheet.content_cells, STAGE_STYLES)
    legend = []
    for number, (name, share) in enumerate(stages.items()):
        key = sheet.glyphs.key(number), STAGE_STYLES[number % len(STAGE_STYLES)]
        legend.append(Text.assemble(key, f" {printable(name)} {percent(share)}"))
    return sheet.stack("stages", [bar, *sheet.fill(legend)])


def _lists(host: HostInterval, sheet: Sheet, room: int) -> list[_List]:
    tables = draw_nodes(host, sheet), draw_clients(host.clients, host, sheet)
    lists: list[_List] = [(table[0], table[1:]) for table in tables if table]
    if workers := host.workers_by_silence:
        needs = [len(rows) for _, rows in lists]
        worker_room = share_lines(room - 2 * len(lists) - 2, [*needs, 10_000])[-1]
        title = f"{plural(len(workers), 'worker')}, busy {percent(host.busy_share)}"
        lists.append((Text(title, "dim"), draw_workers(workers, sheet, worker_room)))
    return lists


def share_lines(room: int, needs: Sequence[int]) -> list[int]:
    """How many lines each list gets: short ones all they need, the others equal parts."""
    rooms = [0] * len(needs)
    for index, at in enumerate(sorted(range(len(needs)), key=lambda at: needs[at])):
        rooms[at] = min(needs[at], room // (len(needs) - index))
        room -= rooms[at]
    return rooms


def _window(
    rows: Sequence[Text], room: int, offset: int, sheet: Sheet
) -> tuple[Sequence[Text], int]:
    """The rows to show and the largest offset; the last line has how many are hidden."""
    if len(rows) <= room:
        return rows, 0
    fitting = max(0, room - 1)
    last = len(rows) - fitting
    first = min(offset, last)
    hidden = ((sheet.glyphs.up, first), (sheet.glyphs.down, last - first))
    more = "  ".join(f"{arrow} {number} more" for arrow, number in hidden if number)
    return [*rows[first : first + fitting], Text(more, "dim")][:room], last
