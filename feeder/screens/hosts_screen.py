"""What ``feeder status`` prints of several hosts: a line for each, and names that are shared."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from feeder.diagnosis.shared_names import SharedName
from feeder.metrics.report import HostReport
from feeder.screens import figures
from feeder.screens.host_view import HostView
from feeder.screens.sheet import Column, Sheet

HostAnswer = tuple[str, HostReport | str]
"""An endpoint with its host's report, or with the reason why there is none."""

_COLUMNS: Final = (
    Column("endpoint", is_flexible=True, is_left=True),
    Column("name", is_flexible=True, is_left=True),
    Column("host", is_flexible=True, is_left=True, rank=2),
    Column("nodes", rank=3),
    Column("workers", rank=4),
    Column("clients", rank=1),
    Column("images/s"),
    Column("state", is_left=True),
)


def draw_hosts(
    answers: Sequence[HostAnswer],
    shared: Sequence[SharedName],
    problems: Sequence[str],
    sheet: Sheet,
) -> list[Text]:
    """Return the lines, none wider than the sheet; ``problems`` are why hosts did not answer."""
    lines: list[Text] = []
    for each in shared:
        lines += sheet.words(figures.printable(each.line), "bold red", indent=2)
    lines += sheet.table(_COLUMNS, [_row(*answer) for answer in answers])
    for problem in problems:
        lines += sheet.words(figures.printable(problem), "red", indent=2)
    return lines


def _row(endpoint: str, answer: HostReport | str) -> list[str | Text]:
    if isinstance(answer, str):
        return [endpoint, *[""] * 6, Text("no report", "bold red")]
    view = HostView(answer)
    verdict = answer.verdict
    return [
        endpoint,
        figures.printable(answer.name),
        figures.printable(answer.host),
        str(len(answer.nodes)),
        str(view.interval.workers),
        str(len(view.clients)),
        figures.rate(view.interval.images_a_s),
        Text(verdict.kind, "bold red" if verdict.is_problem else ""),
    ]
