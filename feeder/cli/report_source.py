"""Reports of a host for the commands that watch it, over one connection."""

import argparse
import time
from collections.abc import Collection
from typing import Self

import zmq

from feeder.cli.report_options import check_timeout
from feeder.client.connection import Context
from feeder.client.stats import StatsLink, report_in
from feeder.metrics.report import HostReport
from feeder.security.keys import ClientKeys, read_client_keys
from feeder.wire.messages import HostStats, HostStatsRequest


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
        """Return the report, None while it has not come; see StatsLink.take for errors."""
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

    def fetch(self) -> HostReport:
        """Request a report and wait for it."""
        self.ask()
        while (report := self.take(self._timeout_s)) is None:
            pass
        return report


def open_source(endpoint: str, arguments: argparse.Namespace) -> LinkSource:
    """Return the source for an endpoint, with the deadline and keys of the options."""
    timeout_s = check_timeout(arguments)
    keys = read_client_keys(arguments.server_key, arguments.client_key)
    return LinkSource(endpoint, timeout_s, keys)
