"""Reports of hosts: of one over one connection, or of several that are asked at once."""

import select
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import zmq

from feeder.client.connection import open_context
from feeder.client.stats import StatsLink, report_in
from feeder.errors import FeederError, name_some
from feeder.metrics.report import HostReport
from feeder.process.shortage import raise_file_limit
from feeder.security.keys import ClientKeys
from feeder.wire.messages import HostStats, HostStatsRequest

_AT_ONCE_MAX: Final = 256  # hosts, with a thread for each
_FILES_SPARE: Final = 64
_FILES_A_LINK: Final = 4
_SOCKETS_A_LINK: Final = 3  # with the two of its monitor

HostAnswer = tuple[str, HostReport | str]
"""An endpoint with its host's report, or with the reason why there is none."""


class LinkSource:
    """What ``feeder.screens.live`` asks, and what prints one report after another."""

    def __init__(self, endpoint: str, timeout_s: float, keys: ClientKeys | None) -> None:
        """Connects at the first request; ``timeout_s`` is that of each request."""
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._link = StatsLink(endpoint, keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def fetch(self) -> HostReport:
        answer = self._link.request(HostStatsRequest(), HostStats, self._timeout_s)
        return report_in(answer, self.endpoint)

    def ask(self) -> None:
        self._link.ask(HostStatsRequest(), self._timeout_s)

    def take(self, wait_s: float, readable: Collection[int]) -> HostReport | None:
        """The report, None while it has not come; see StatsLink.take for errors."""
        answer = self._link.take(HostStats, wait_s, readable)
        return None if answer is None else report_in(answer, self.endpoint)

    def wait(self, wait_s: float, readable: Collection[int] = ()) -> None:
        """Wait up to ``wait_s``, or until a descriptor is readable."""
        select.select(readable, (), (), max(0.0, wait_s))


def ask_all(
    endpoints: Sequence[str], timeout_s: float, keys: ClientKeys | None
) -> list[HostAnswer]:
    """The answer of each different endpoint, in their order; all have the same time."""
    names = list(dict.fromkeys(endpoints))
    links = min(_AT_ONCE_MAX, max(1, (raise_file_limit() - _FILES_SPARE) // _FILES_A_LINK))
    context = open_context("feeder status")
    context.set(zmq.MAX_SOCKETS, 1 + _SOCKETS_A_LINK * len(names))

    def ask(endpoint: str) -> HostReport | str:
        try:
            with StatsLink(endpoint, keys, context) as link:
                answer = link.request(HostStatsRequest(), HostStats, timeout_s)
            return report_in(answer, endpoint)
        except FeederError as error:
            return str(error)

    try:
        with ThreadPoolExecutor(links) as pool:
            return list(zip(names, pool.map(ask, names), strict=True))
    finally:
        context.destroy(linger=0)


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
