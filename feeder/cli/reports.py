"""Reports of hosts: of one over one connection, or of several asked at once, within --timeout.

With few descriptors several are asked in turns, which have equal parts of that time.
"""

import argparse
import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import zmq

from feeder.cli.options import check_timeout, read_keys
from feeder.client.connection import Context, open_context
from feeder.client.stats import StatsLink, report_in
from feeder.errors import FeederError, PeerError, name_some
from feeder.metrics.report import HostReport
from feeder.process.name_lookup import host_name_in
from feeder.process.shortage import raise_file_limit
from feeder.security.keys import ClientKeys
from feeder.wire.messages import HostStats, HostStatsRequest

_FILES_SPARE: Final = 64
_FILES_A_LINK: Final = 4
_SOCKETS_A_LINK: Final = 3  # with the two of its monitor
_LOOK_UPS_MAX: Final = 64
"""Host names that are looked up at once."""

HostAnswer = tuple[str, HostReport | str]
"""An endpoint with its host's report, or with the reason why there is none."""


class LinkSource:
    """What ``feeder.screens.live`` asks, and what prints one report after another."""

    def __init__(
        self,
        endpoint: str,
        timeout_s: float,
        keys: ClientKeys | None,
        context: Context | None = None,
    ) -> None:
        """Connects at the first request, in ``context`` if there is one; ``timeout_s`` is that of
        each request."""
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._link = StatsLink(endpoint, keys, context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def ask(self, deadline_s: float | None = None) -> None:
        """Request a report, to come by ``deadline_s`` if the time limit began earlier."""
        self._link.ask(HostStatsRequest(), self._timeout_s, deadline_s)

    def take(self, wait_s: float, readable: Collection[int] = ()) -> HostReport | None:
        """The report, None while it has not come; see StatsLink.take for errors."""
        answer = self._link.take(HostStats, wait_s, readable)
        return None if answer is None else report_in(answer, self.endpoint)

    def wait(self, wait_s: float, readable: Collection[int] = ()) -> None:
        """Wait up to ``wait_s``, or until a descriptor is readable."""
        poller = zmq.Poller()
        for descriptor in readable:
            poller.register(descriptor, zmq.POLLIN)
        if readable:
            poller.poll(max(0, round(wait_s * 1000)))
        else:
            time.sleep(max(0.0, wait_s))

    def take_within(self, until_s: float) -> HostReport:
        while (report := self.take(max(0.0, until_s - time.monotonic()))) is None:
            pass
        return report

    def fetch(self) -> HostReport:
        self.ask()
        return self.take_within(time.monotonic() + self._timeout_s)


def ask_all(endpoints: Sequence[str], arguments: argparse.Namespace) -> list[HostAnswer]:
    """The answer of each different endpoint, in their order, within --timeout."""
    timeout_s, keys = check_timeout(arguments), read_keys(arguments)
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


def _ask_some(sources: Sequence[LinkSource], until_s: float) -> list[HostAnswer]:

    def ask(source: LinkSource) -> str:
        try:
            if time.monotonic() >= until_s:
                raise PeerError("not asked: looking up other names took all of --timeout")
            source.ask(until_s)
        except FeederError as error:
            return str(error)
        return ""

    def take(source: LinkSource) -> HostReport | str:
        try:
            return source.take_within(until_s)
        except FeederError as error:
            return str(error)

    first = sorted(sources, key=lambda source: bool(host_name_in(source.endpoint)))
    with ThreadPoolExecutor(_LOOK_UPS_MAX) as pool:
        problems = dict(zip(first, pool.map(ask, first), strict=True))
    return [(source.endpoint, problems[source] or take(source)) for source in sources]


def find_shared_names(answers: Iterable[HostAnswer]) -> list[dict[str, object]]:
    """The names (serve.name) that several daemons have: the name, its feeders and a warning.

    They must be unique among those of a job: clients take node processes of one name for one
    process, and would send all requests for its lanes to whichever answered first. Reports of the
    same daemon, from several of its endpoints, count once.
    """
    daemons: dict[str, dict[int, str]] = {}
    for endpoint, report in answers:
        if isinstance(report, HostReport) and report.name:
            same = daemons.setdefault(report.name, {})
            same.setdefault(report.incarnation, f"{report.host} at {endpoint}")
    return [
        {
            "name": name,
            "feeders": [*same.values()],
            "line": f"{len(same)} feeders are named {name}: {', '.join(same.values())}; give each "
            "its own name (serve.name), or end the ones that were replaced",
        }
        for name, same in daemons.items()
        if len(same) > 1
    ]


def sum_up(answers: Iterable[HostAnswer]) -> list[str]:
    """A line for each reason why hosts did not answer, with the first of them."""
    endpoints: dict[str, list[str]] = {}
    for endpoint, answer in answers:
        if isinstance(answer, str):
            text = answer if endpoint in answer else f"{endpoint}: {answer}"
            endpoints.setdefault(text.replace(endpoint, "\0"), []).append(endpoint)
    return [text.replace("\0", name_some(some)) for text, some in endpoints.items()]
