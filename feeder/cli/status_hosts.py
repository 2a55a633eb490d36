"""``feeder status`` of several endpoints: all are asked at once, within --timeout.

With few descriptors they are asked in turns, which have equal parts of that time.
"""

import argparse
import contextlib
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import zmq

from feeder.cli.report_options import check_timeout
from feeder.cli.report_source import LinkSource
from feeder.client.connection import open_context
from feeder.errors import FeederError, PeerError, name_some
from feeder.metrics.report import HostReport
from feeder.process.name_lookup import host_name_in
from feeder.process.shortage import raise_file_limit
from feeder.security.keys import read_client_keys

if TYPE_CHECKING:
    from feeder.screens.tables import HostAnswer

_FILES_SPARE: Final = 64
_FILES_A_LINK: Final = 4
_SOCKETS_A_LINK: Final = 3  # with the two of its monitor
_LOOK_UPS_MAX: Final = 64
"""Host names that are looked up at once."""


def print_hosts(endpoints: Sequence[str], arguments: argparse.Namespace) -> int:
    """Print a line for each endpoint's host, or all reports as JSON.

    Returns PeerError's exit status if a host did not answer, else 0. Raises PeerError if none did.
    """
    answers = _ask_all(endpoints, arguments)
    reports = [(name, answer) for name, answer in answers if isinstance(answer, HostReport)]
    shared = _find_shared_names(reports)
    if arguments.json:
        from feeder.screens.console import report_fields, to_json

        hosts = [
            {"endpoint": endpoint}
            | ({"error": answer} if isinstance(answer, str) else report_fields(answer))
            for endpoint, answer in answers
        ]
        print(to_json({"shared_names": shared, "hosts": hosts}, indent=2))
    elif not reports:
        raise PeerError(name_some(_sum_up(answers), "; "))
    else:
        from feeder.screens.console import open_console, print_lines
        from feeder.screens.sheet import Sheet, glyphs_for
        from feeder.screens.tables import draw_hosts

        console = open_console()
        sheet = Sheet(console.width, glyphs_for(console.encoding))
        warnings = [str(name["line"]) for name in shared]
        print_lines(console, draw_hosts(answers, warnings, _sum_up(answers), sheet))
    return 0 if len(reports) == len(answers) else PeerError.exit_status


def _find_shared_names(reports: Iterable[tuple[str, HostReport]]) -> list[dict[str, object]]:
    """The names (serve.name) that several daemons have, given each endpoint with its report.

    They must be unique among those of a job: clients take node processes of one name for one
    process, and would send all requests for its lanes to whichever answered first. Reports of the
    same daemon, from several of its endpoints, count once.
    """
    daemons: dict[str, dict[int, str]] = {}
    for endpoint, report in reports:
        if report.name:
            same = daemons.setdefault(report.name, {})
            same.setdefault(report.incarnation, f"{report.host} at {endpoint}")
    shared: list[dict[str, object]] = []
    for name, same in daemons.items():
        feeders = list(same.values())
        if len(feeders) > 1:
            line = (
                f"{len(feeders)} feeders are named {name}: {', '.join(feeders)}; give each its own "
                "name (serve.name), or end the ones that were replaced"
            )
            shared.append({"name": name, "feeders": feeders, "line": line})
    return shared


def _ask_all(endpoints: Sequence[str], arguments: argparse.Namespace) -> "list[HostAnswer]":
    """Return each endpoint's answer, in their order, within --timeout."""
    timeout_s = check_timeout(arguments)
    keys = read_client_keys(arguments.server_key, arguments.client_key)
    names = list(dict.fromkeys(endpoints))
    links = max(1, (raise_file_limit() - _FILES_SPARE) // _FILES_A_LINK)
    turns = [names[start : start + links] for start in range(0, len(names), links)]
    within_s = round(timeout_s / len(turns), 3)
    answers: list[HostAnswer] = []
    for turn in turns:
        with contextlib.ExitStack() as stack:
            context = open_context("feeder status")
            stack.callback(context.destroy, linger=0)
            context.set(zmq.MAX_SOCKETS, 1 + _SOCKETS_A_LINK * len(turn))
            sources = [LinkSource(name, within_s, keys, context) for name in turn]
            for source in sources:
                stack.enter_context(source)
            answers += _ask_some(sources, time.monotonic() + within_s)
    return answers


def _ask_some(sources: Sequence[LinkSource], until_s: float) -> "list[HostAnswer]":
    """Request a report from each, then wait for all of them together."""

    def ask(source: LinkSource) -> str:
        try:
            if time.monotonic() >= until_s:
                raise PeerError("not asked: looking up other names took all of --timeout")
            source.ask(until_s)
        except FeederError as error:
            return str(error)
        return ""

    first = sorted(sources, key=lambda source: bool(host_name_in(source.endpoint)))
    with ThreadPoolExecutor(_LOOK_UPS_MAX) as pool:
        problems = dict(zip(first, pool.map(ask, first), strict=True))
    return [(source.endpoint, problems[source] or _take(source, until_s)) for source in sources]


def _take(source: LinkSource, until_s: float) -> HostReport | str:
    """Return the report, or why there is none once its request's time is over."""
    while True:
        try:
            report = source.take(max(0.0, until_s - time.monotonic()))
        except FeederError as error:
            return str(error)
        if report is not None:
            return report


def _sum_up(answers: "Sequence[HostAnswer]") -> list[str]:
    """Return a line for each reason why hosts did not answer, with the first of them."""
    endpoints: dict[str, list[str]] = {}
    for endpoint, answer in answers:
        if isinstance(answer, str):
            text = answer if endpoint in answer else f"{endpoint}: {answer}"
            endpoints.setdefault(text.replace(endpoint, "\0"), []).append(endpoint)
    return [text.replace("\0", name_some(some)) for text, some in endpoints.items()]
