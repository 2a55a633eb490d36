"""Standard output as ``rich`` writes to it, for the commands with screens.

The one module of this room that can be imported without rich.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from feeder.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from rich.console import Console as Console  # for the commands, which import no rich
    from rich.text import Text


def open_console() -> "Console":
    """Return a console on standard output; ResourceError where rich is not installed.

    Only what draws needs rich, so a training environment without it has --json and --counters.
    """
    try:
        from rich.console import Console
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        raise ResourceError(
            "the library rich, which draws this, is not installed in this environment: run "
            "`pip install rich`, or use `feeder status` with --json or --counters"
        ) from None
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def is_live(console: "Console") -> bool:
    """Return whether screens can be redrawn in place on it."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty()


def check_live(console: "Console", command: str) -> None:
    """Raise ConfigError where screens cannot be redrawn in place."""
    if not is_live(console):
        raise ConfigError(
            f"{command} needs a terminal that can move its cursor: use `feeder status`, with "
            "--watch for a report every few seconds"
        )


def print_lines(console: "Console", lines: "Iterable[Text]") -> None:
    """Print lines that have been laid out; what the encoding lacks becomes a question mark."""
    for line in lines:
        text = line.copy()
        encoding = console.encoding
        text.plain = text.plain.encode(encoding, "replace").decode(encoding)
        console.print(text, soft_wrap=True)
    console.file.flush()
