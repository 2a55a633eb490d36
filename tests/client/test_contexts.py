"""ZeroMQ contexts of the client: I/O threads for host names, and checks for room."""

import contextlib
import os
import resource
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from feeder.client.connection import NAME_THREADS, LinkContext
from feeder.errors import ResourceError
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


@pytest.mark.parametrize(
    "endpoint", ["tcp://10.0.0.1:5555", "tcp://[fe80::1%eth0]:5555", "ipc:///run/feeder/s"]
)
def test_addresses_share_an_io_thread(endpoint: str) -> None:
    context = LinkContext("job", [endpoint])
    assert context.choose_threads(endpoint) == context.choose_threads("tcp://127.0.0.1:1") == 1
    context.context.term()


def test_names_are_spread_over_the_other_io_threads() -> None:
    names = [f"tcp://host-{number}:5555" for number in range(3 * NAME_THREADS)]
    context = LinkContext("job", names[:1])
    chosen = Counter(context.choose_threads(name) for name in names)
    assert chosen == {2 << number: 3 for number in range(NAME_THREADS)}
    assert context.choose_threads("tcp://host-0:5556") == context.choose_threads(names[0])
    context.context.term()


def test_names_that_join_addresses_share_an_io_thread() -> None:
    context = LinkContext("job", ["tcp://127.0.0.1:1"])
    assert {context.choose_threads(f"tcp://host-{number}:5555") for number in range(3)} == {2}
    context.context.term()


def test_without_descriptors_a_context_is_refused() -> None:
    with no_further_file(spare=4), pytest.raises(ResourceError, match=r"^job: .*\(ulimit -n\)"):
        LinkContext("job", [])


@pytest.mark.parametrize("spare", [0, 1, 2, 5, 9, 10, 12, 16, 20])
def test_a_job_continues_without_descriptors_for_further_feeders(spare: int) -> None:
    with FakeNode() as node:
        loader = make_loader(node, timeout_s=DEADLINE_S)
        batches = iter(loader)
        next(batches)
        # These count as names, being no dotted quads, and resolve without a name server.
        listed = (node.endpoint, *(f"tcp://127.{number}:9" for number in range(1, 6)))
        with no_further_file(spare=spare):
            loader._feed._transport._set_endpoints(dict.fromkeys(listed, ""))
            wait_until(
                lambda: len(loader._feed._session.links.by_number) == len(listed),
                "all are dialled",
            )
            assert next(batches).index == 1
        assert next(batches).index == 2
        threads = set(threading.enumerate())
        loader.close()
        threads.remove(loader._feed._transport._thread)
        wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")
