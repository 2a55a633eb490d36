"""ZeroMQ contexts of the client: I/O threads for host names, and checks for room."""

import contextlib
import os
import resource
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import zmq

from feeder.client.connection import NAME_THREADS, Link, open_context
from feeder.errors import ResourceError
from tests.support.client_shell import hello
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import make_loader


@contextlib.contextmanager
def no_further_file(spare: int) -> Iterator[None]:
    """Leave room for ``spare`` more descriptors only."""
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 + max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, former[1]))
    filling = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit + spare, former[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
        for fd in filling:
            os.close(fd)


def affinities(*endpoints: str) -> list[int]:
    """The I/O threads that the links of a client to these endpoints have, as masks."""
    with open_context("job", NAME_THREADS) as context:
        links = [
            Link(number, endpoint, hello(), None, context)
            for number, endpoint in enumerate(endpoints)
        ]
        masks = [int(link.dealer.get(zmq.AFFINITY)) for link in links]
        for link in links:
            link.close()
    return masks


def test_addresses_share_an_io_thread() -> None:
    addresses = "tcp://127.0.0.1:1", "tcp://[fe80::1%lo]:5555", "ipc:///run/feeder/s"
    assert affinities(*addresses) == [1, 1, 1]


def test_names_are_spread_over_the_other_io_threads() -> None:
    names = [f"tcp://localhost:{number}" for number in range(1, 3 * NAME_THREADS + 1)]
    assert Counter(affinities(*names)) == {2 << number: 3 for number in range(NAME_THREADS)}


def test_without_descriptors_a_context_is_refused() -> None:
    with no_further_file(spare=4), pytest.raises(ResourceError, match=r"^job: .*\(ulimit -n\)"):
        open_context("job", 1)


@pytest.mark.parametrize("spare", [0, 1, 5, 10, 20])
def test_a_job_continues_without_descriptors_for_further_feeders(spare: int) -> None:
    with FakeNode() as node:
        loader = make_loader(node, timeout_s=DEADLINE_S)
        batches = iter(loader)
        next(batches)
        # These count as names, being no dotted quads, and resolve without a name server.
        listed = (node.endpoint, *(f"tcp://127.{number}:9" for number in range(1, 6)))
        with no_further_file(spare=spare):
            loader._feed._transport._set_endpoints(dict.fromkeys(listed, ""))
            links = loader._feed._session.links
            wait_until(
                lambda: len(links.by_number) + len(links.left_out) == len(listed),
                "all are dialled, or left out",
            )
            assert next(batches).index == 1
        assert next(batches).index == 2
        threads = set(threading.enumerate())
        loader.close()
        threads.remove(loader._feed._transport._thread)
        wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")
