"""``feeder status`` of several endpoints: _LINKS_MAX are asked at a time, each within --timeout."""

import argparse
import contextlib
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from feeder.cli.report_options import check_timeout
from feeder.cli.report_source import LinkSource
from feeder.diagnosis.shared_names import find_shared_names
from feeder.errors import FeederError, PeerError
from feeder.metrics.report import HostReport
from feeder.security.keys import read_client_keys

if TYPE_CHECKING:
    from feeder.screens.hosts_screen import HostAnswer

_LINKS_MAX: Final = 32
"""Each has a context of its own: two threads and some ten descriptors."""


def print_hosts(endpoints: Sequence[str], arguments: argparse.Namespace) -> int:
    """Print a line for each endpoint's host, or all reports as JSON.

    Returns PeerError's exit status if a host did not answer, else 0.
    """
    answers = _ask_all(endpoints, arguments)
    reports = [(name, answer) for name, answer in answers if isinstance(answer, HostReport)]
    shared = find_shared_names(reports)
    if arguments.json:
        from feeder.screens.report_json import report_fields

        hosts = [
            {"endpoint": endpoint}
            | ({"error": answer} if isinstance(answer, str) else report_fields(answer))
            for endpoint, answer in answers
        ]
        names = [{"name": each.name, "feeders": each.feeders, "line": each.line} for each in shared]
        print(json.dumps({"shared_names": names, "hosts": hosts}, indent=2))
    else:
        from feeder.screens.console import open_console, print_lines
        from feeder.screens.glyphs import glyphs_for
        from feeder.screens.hosts_screen import draw_hosts
        from feeder.screens.sheet import Sheet

        console = open_console()
        sheet = Sheet(console.width, glyphs_for(console.encoding))
        print_lines(console, draw_hosts(answers, shared, sheet))
    return 0 if len(reports) == len(answers) else PeerError.exit_status


def _ask_all(endpoints: Sequence[str], arguments: argparse.Namespace) -> "list[HostAnswer]":
    """Return each endpoint's answer, in their order."""
    timeout_s = check_timeout(arguments)
    keys = read_client_keys(arguments.server_key, arguments.client_key)
    names = list(dict.fromkeys(endpoints))
    answers: list[HostAnswer] = []
    for start in range(0, len(names), _LINKS_MAX):
        with contextlib.ExitStack() as stack:
            some = [LinkSource(name, timeout_s, keys) for name in names[start : start + _LINKS_MAX]]
            for source in some:
                stack.enter_context(source)
            answers += _ask_some(some, timeout_s)
    return answers


def _ask_some(sources: Sequence[LinkSource], timeout_s: float) -> "list[HostAnswer]":
    """Request a report from each, then wait for all of them together."""
    until_s = time.monotonic() + timeout_s
    problems: dict[str, str] = {}
    for source in sources:
        try:
            if time.monotonic() >= until_s:
                raise PeerError("not asked: looking up the names before it took all of --timeout")
            source.ask()
        except FeederError as error:
            problems[source.endpoint] = str(error)
    return [
        (each.endpoint, problems.get(each.endpoint) or _take(each, until_s)) for each in sources
    ]


def _take(source: LinkSource, until_s: float) -> HostReport | str:
    """Return the report, or why there is none once its request's time is over."""
    while True:
        try:
            report = source.take(max(0.0, until_s - time.monotonic()))
        except FeederError as error:
            return str(error)
        if report is not None:
            return report
