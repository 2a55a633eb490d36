"""``feeder status`` and ``feeder top``: what a host's daemon does, and what holds it back.

One report comes from any node process of the host. A terminal gets a summary or a live screen;
--json has all. Several endpoints get a line each.
"""

import argparse
import json
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.options import (
    DEFAULT_ENDPOINT,
    add_key_options,
    add_timeout_option,
    check_timeout,
    option,
    read_keys,
)
from feeder.errors import ConfigError, FeederError, PeerError, name_some

if TYPE_CHECKING:
    from feeder.cli.reports import LinkSource
    from feeder.metrics.report import HostReport
    from feeder.screens.console import Console
    from feeder.screens.live import Draw

_STATUS_INTERVAL_S: Final = 2.0
_TOP_INTERVAL_S: Final = 1.0
_INTERVAL_RANGE_S: Final = (0.1, 3600.0)


def add_parsers(subparsers: "argparse._SubParsersAction[Any]") -> None:
    text = f"any endpoint of the host's daemon (default: {DEFAULT_ENDPOINT})"
    interval = "seconds between requests (default: {:g})"
    status = subparsers.add_parser(
        "status",
        help="show what a running daemon does, and what holds it back",
        description="Show what the daemon at ENDPOINT does on its whole host: the verdict, rates, "
        "waits, workers, caches, node processes and clients. What is zero is not shown. Several "
        "ENDPOINTs get a line each, and feeders that share a name are reported.",
    )
    status.add_argument(
        "endpoints",
        metavar="ENDPOINT",
        nargs="*",
        default=[DEFAULT_ENDPOINT],
        help=f"{text}; several: a line for each host",
    )
    add_timeout_option(status, "seconds to wait for the reply")
    add_key_options(status)
    option(status, "--watch", "show it again and again, until q or Ctrl-C")
    option(status, "--interval S", interval.format(_STATUS_INTERVAL_S), type=float)
    option(status, "--json", "print everything as one JSON object; with --watch one a line")
    option(status, "--counters", "print the counters of the node process at ENDPOINT instead")
    status.set_defaults(run=run_status)

    top = subparsers.add_parser(
        "top",
        help="show live what a running daemon and its workers do",
        description="Show live what the daemon at ENDPOINT does on its whole host. Keys: arrows "
        "and PgUp/PgDn scroll lists that are too long, p pauses, q quits.",
    )
    top.add_argument("endpoint", metavar="ENDPOINT", nargs="?", default=DEFAULT_ENDPOINT, help=text)
    add_timeout_option(top, "seconds to wait for the reply")
    add_key_options(top)
    option(top, "--interval S", interval.format(_TOP_INTERVAL_S), type=float)
    top.set_defaults(run=run_top)


def _choose_interval(arguments: argparse.Namespace, default_s: float) -> float:
    interval_s = default_s if arguments.interval is None else float(arguments.interval)
    least, most = _INTERVAL_RANGE_S
    if not least <= interval_s <= most:
        raise ConfigError(f"--interval {interval_s:g}: it must be from {least:g} to {most:g} s")
    return interval_s


def run_status(arguments: argparse.Namespace) -> int:
    """Request reports and show them; PeerError when the first does not come in time."""
    if arguments.interval is not None and not arguments.watch:
        raise ConfigError("--interval goes with --watch: add it, or leave --interval out")
    endpoint, *others = arguments.endpoints
    if others and (arguments.watch or arguments.counters):
        option = "--watch" if arguments.watch else "--counters"
        raise ConfigError(f"{option} shows one daemon: name one ENDPOINT, or leave {option} out")
    if others:
        return _print_hosts(arguments)
    if arguments.counters:
        _print_counters(endpoint, arguments)
        return 0
    interval_s = _choose_interval(arguments, _STATUS_INTERVAL_S)
    with _open_source(endpoint, arguments) as source:
        if arguments.watch:
            _watch(source, interval_s, is_json=arguments.json)
        else:
            _print_report(source.fetch(), is_json=arguments.json, indent=2)
    return 0


def run_top(arguments: argparse.Namespace) -> int:
    """Show the screen; PeerError when the first report does not come in time."""
    interval_s = _choose_interval(arguments, _TOP_INTERVAL_S)
    with _open_source(arguments.endpoint, arguments) as source:
        from feeder.screens.console import check_live, open_console

        console = open_console()
        check_live(console, "feeder top")
        first = source.fetch()

        from feeder.screens.top_screen import draw_top

        _show_live(source, first, draw_top, interval_s, console)
    return 0


def _open_source(endpoint: str, arguments: argparse.Namespace) -> "LinkSource":
    from feeder.cli.reports import LinkSource

    return LinkSource(endpoint, check_timeout(arguments), read_keys(arguments))


def _print_counters(endpoint: str, arguments: argparse.Namespace) -> None:
    from feeder.client.stats import request_counters

    if arguments.watch:
        raise ConfigError("--watch shows reports: leave out --counters, or use `watch`")
    counters = request_counters(endpoint, check_timeout(arguments), read_keys(arguments))
    print(json.dumps(counters, indent=2) if arguments.json else format_counters(counters))


def format_counters(counters: Mapping[str, int | float | str]) -> str:
    """The counters as text, one a line, in two aligned columns."""
    width = max(map(len, counters), default=0)
    forms = {int: ",", float: ",.3f", str: ""}
    return "\n".join(
        f"{name:<{width}}  {value:{forms[type(value)]}}" for name, value in counters.items()
    )


def _print_hosts(arguments: argparse.Namespace) -> int:
    """Print a line for each endpoint's host, or all reports as JSON.

    Returns PeerError's exit status if a host did not answer, else 0. Raises PeerError if none did.
    """
    from feeder.cli.reports import ask_all, find_shared_names, sum_up
    from feeder.screens.console import open_console, print_lines, report_fields, to_json

    answers = ask_all(arguments.endpoints, check_timeout(arguments), read_keys(arguments))
    shared, silent = find_shared_names(answers), sum_up(answers)
    absent = [answer for _, answer in answers if isinstance(answer, str)]
    if arguments.json:
        hosts = [
            {"endpoint": endpoint}
            | ({"error": answer} if isinstance(answer, str) else report_fields(answer))
            for endpoint, answer in answers
        ]
        print(to_json({"shared_names": shared, "hosts": hosts}, indent=2))
    elif len(absent) == len(answers):
        raise PeerError(name_some(silent, "; "))
    else:
        console = open_console()
        from feeder.screens.sheet import Sheet, glyphs_for
        from feeder.screens.tables import draw_hosts

        sheet = Sheet(console.width, glyphs_for(console.encoding))
        warnings = [str(name["line"]) for name in shared]
        print_lines(console, draw_hosts(answers, warnings, silent, sheet))
    return PeerError.exit_status if absent else 0


def _print_report(
    report: "HostReport | str", *, is_json: bool = False, indent: int | None = None
) -> None:
    """Print a report, or the reason why there is none, as JSON or as a summary."""
    from feeder.screens.console import open_console, print_lines, report_fields, to_json

    if is_json:
        fields = {"error": report} if isinstance(report, str) else report_fields(report)
        print(to_json(fields, indent=indent), flush=True)
    elif isinstance(report, str):
        print(report, flush=True)
    else:
        console = open_console()  # which says so if rich is missing
        from feeder.screens.sheet import Sheet, glyphs_for
        from feeder.screens.status_screen import draw_status

        sheet = Sheet(console.width, glyphs_for(console.encoding))
        print_lines(console, draw_status(report, sheet))


def _watch(source: "LinkSource", interval_s: float, *, is_json: bool) -> None:
    """Show one report after another until the user ends it, or in a pipe a signal does."""
    first = source.fetch()
    if not is_json:
        from feeder.screens.console import is_live, open_console

        console = open_console()
        if is_live(console):
            from feeder.screens.status_screen import draw_status_frame

            # The last one again, as the alternate screen is gone.
            _print_report(_show_live(source, first, draw_status_frame, interval_s, console))
            return
    report: HostReport | str = first
    while True:
        _print_report(report, is_json=is_json)
        if not is_json:
            print(flush=True)
        next_s = time.monotonic() + interval_s
        source.wait(interval_s)
        try:
            report = source.fetch()
        except FeederError as error:
            report = str(error)
            source.wait(next_s - time.monotonic())


def _show_live(
    source: "LinkSource", first: "HostReport", draw: "Draw", interval_s: float, console: "Console"
) -> "HostReport":
    """Show a live screen until the user ends it, by q or Ctrl-C; return the last report.

    Raises SystemExit after SIGTERM, SIGHUP (a closed terminal) and SIGQUIT (Ctrl-\\). The terminal
    is as it was before in every case.
    """
    from feeder.process.stop_signals import SignalWakeup, StopSignals
    from feeder.screens.live import LiveState, run_live

    state = LiveState(first, source.endpoint, interval_s, time.monotonic())
    stop = StopSignals(signal.SIGHUP, signal.SIGQUIT)
    wakeup = SignalWakeup((signal.SIGWINCH, signal.SIGTSTP))
    try:
        with stop:
            run_live(source, state, draw, console, wakeup.fileno())
    except KeyboardInterrupt:
        if stop.received != signal.SIGINT:
            raise SystemExit(stop.exit_status) from None
    return state.report
