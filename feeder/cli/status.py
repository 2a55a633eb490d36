"""``feeder status``: what a host's daemon does, and what holds it back.

One report comes from any node process of the host. A terminal gets a summary; --json has all.
Several endpoints get a line each (status_hosts.py).
"""

import argparse
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.report_options import (
    add_interval_option,
    add_source_options,
    check_timeout,
    choose_interval,
)
from feeder.errors import ConfigError, FeederError

if TYPE_CHECKING:
    from feeder.cli.report_source import LinkSource
    from feeder.metrics.report import HostReport
    from feeder.screens.console import Console

_INTERVAL_S: Final = 2.0


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "status",
        help="show what a running daemon does, and what holds it back",
        description="Show what the daemon at ENDPOINT does on its whole host: the verdict, rates, "
        "waits, workers, caches, node processes and clients. What is zero is not shown. Several "
        "ENDPOINTs get a line each, and feeders that share a name are reported.",
    )
    add_source_options(parser, is_several=True)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show it again and again, until q or Ctrl-C",
    )
    add_interval_option(parser, _INTERVAL_S)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print everything as one JSON object; with --watch one a line",
    )
    parser.add_argument(
        "--counters",
        action="store_true",
        help="print the counters of the node process at ENDPOINT instead",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Request reports and show them; PeerError when the first does not come in time."""
    if arguments.interval is not None and not arguments.watch:
        raise ConfigError("--interval goes with --watch: add it, or leave --interval out")
    endpoint, *others = arguments.endpoints
    if others and (arguments.watch or arguments.counters):
        option = "--watch" if arguments.watch else "--counters"
        raise ConfigError(f"{option} shows one daemon: name one ENDPOINT, or leave {option} out")
    if others:
        from feeder.cli.status_hosts import print_hosts

        return print_hosts(arguments.endpoints, arguments)
    if arguments.counters:
        return _print_counters(endpoint, arguments)
    interval_s = choose_interval(arguments, _INTERVAL_S)
    from feeder.cli.report_source import open_source

    with open_source(endpoint, arguments) as source:
        if arguments.watch:
            _watch(source, interval_s, is_json=arguments.json)
        else:
            _print_once(source.fetch(), is_json=arguments.json)
    return 0


def _print_counters(endpoint: str, arguments: argparse.Namespace) -> int:
    from feeder.client.stats import request_counters
    from feeder.security.keys import read_client_keys

    if arguments.watch:
        raise ConfigError("--watch shows reports: leave out --counters, or use `watch`")
    timeout_s = check_timeout(arguments)
    keys = read_client_keys(arguments.server_key, arguments.client_key)
    counters = request_counters(endpoint, timeout_s, keys)
    print(json.dumps(counters, indent=2) if arguments.json else format_counters(counters))
    return 0


def _print_once(report: "HostReport", *, is_json: bool) -> None:
    if is_json:
        from feeder.screens.console import report_fields, to_json

        print(to_json(report_fields(report), indent=2))
        return
    from feeder.screens.console import open_console

    _print_report(report, open_console())


def _print_report(report: "HostReport", console: "Console") -> None:
    from feeder.screens.console import print_lines
    from feeder.screens.sheet import Sheet, glyphs_for
    from feeder.screens.status_screen import draw_status

    sheet = Sheet(console.width, glyphs_for(console.encoding))
    print_lines(console, draw_status(report, sheet))


def _watch(source: "LinkSource", interval_s: float, *, is_json: bool) -> None:
    first = source.fetch()
    if is_json:
        _print_repeatedly(source, first, interval_s, None)
        return
    from feeder.screens.console import is_live, open_console

    console = open_console()
    if not is_live(console):
        _print_repeatedly(source, first, interval_s, console)
        return
    from feeder.cli.live_command import show_live
    from feeder.screens.status_screen import draw_status_frame

    last = show_live(source, first, draw_status_frame, interval_s, console)
    _print_report(last, console)  # as the alternate screen is gone


def _print_repeatedly(
    source: "LinkSource", first: "HostReport", interval_s: float, console: "Console | None"
) -> None:
    """Print a report every ``interval_s``, as JSON without a console, until a signal ends it."""
    from feeder.screens.console import report_fields, to_json

    report: HostReport | None = first
    problem = ""
    while True:
        if console is None:
            fields = {"error": problem} if report is None else report_fields(report)
            print(to_json(fields), flush=True)
        elif report is None:
            print(f"{problem}\n", flush=True)
        else:
            _print_report(report, console)
            print(flush=True)
        next_s = time.monotonic() + interval_s
        source.wait(interval_s)
        try:
            report = source.fetch()
        except FeederError as error:
            report, problem = None, str(error)
            source.wait(next_s - time.monotonic())


def format_counters(counters: Mapping[str, int | float | str]) -> str:
    """Return the counters as text, one a line, in two aligned columns."""
    width = max(map(len, counters), default=0)
    return "\n".join(
        f"{name:<{width}}  {_format_counter(value)}" for name, value in counters.items()
    )


def _format_counter(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
