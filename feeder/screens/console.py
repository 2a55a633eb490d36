"""Standard output: a report as JSON, for programs, or lines as ``rich`` writes them.

The one module of this room that can be imported without rich.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final

import msgspec

from feeder.diagnosis.interval import HostInterval
from feeder.errors import ConfigError, ResourceError
from feeder.metrics.report import HostReport

if TYPE_CHECKING:
    from rich.console import Console as Console  # for the commands, which import no rich
    from rich.text import Text

_RATES: Final = (
    "seconds", "images_a_s", "sent_bytes_a_s", "lent_bytes_a_s", "workers", "busy_workers",
    "busy_share", "wait_share", "page_cache_share", "cache_hit_share", "stages", "slots", "jobs",
    "clients", "nodes", "machine", "store",
)  # fmt: skip


def to_json(fields: Mapping[str, Any], indent: int | None = None) -> str:
    """What has reports' fields in it as one JSON object.

    Shares are from 0 to 1 and null where nothing was measured. The fields are those of
    ``feeder.diagnosis.interval`` and ``feeder.metrics``.
    """
    return json.dumps(fields, indent=indent, default=_fields)


def _fields(value: object) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else vars(value)


def report_fields(report: HostReport) -> dict[str, Any]:
    """``verdict``, ``rates`` (of the interval) and the whole ``report``, for ``to_json``."""
    host = HostInterval(report)
    rates = {name: getattr(host, name) for name in _RATES}
    return {"verdict": report.verdict, "rates": rates, "report": report}


def open_console() -> "Console":
    """A console on standard output; ResourceError where rich is not installed.

    Only what draws needs rich, so a training environment without it has --json and --counters.
    """
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        raise ResourceError(
            "the library rich, which draws this, is not installed in this environment: run "
            "`pip install rich`, or use `feeder status` with --json or --counters"
        ) from None
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a question mark for what its encoding lacks
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def is_live(console: "Console") -> bool:
    """Whether screens can be redrawn in place on it."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty()


def check_live(console: "Console", command: str) -> None:
    """Raise ConfigError where screens cannot be redrawn in place."""
    if not is_live(console):
        raise ConfigError(
            f"{command} needs a terminal that can move its cursor: use `feeder status`, with "
            "--watch for a report every few seconds"
        )


def print_lines(console: "Console", lines: "Iterable[Text]") -> None:
    """Print lines that have been laid out."""
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()
