"""ZeroMQ contexts of the client: one for all addresses, one for each host name."""

import contextlib
import os
import resource
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from feeder.client.contexts import CONTEXTS_MAX, Contexts
from feeder.errors import ResourceError
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import make_loader

FAREWELL_MS = 200


@contextlib.contextmanager
def no_file_more(spare: int) -> Iterator[None]:
    """Have room for only so many descriptors more."""
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
def test_addresses_share_a_context_to_the_end(endpoint: str) -> None:
    contexts = Contexts(FAREWELL_MS)
    shared = contexts.take("tcp://127.0.0.1:1")
    assert contexts.take(endpoint) is shared
    contexts.give_back(endpoint)
    contexts.give_back("tcp://127.0.0.1:1")
    assert not shared.closed
    contexts.close()
    assert shared.closed


def test_very_many_names_share_some_contexts() -> None:
    contexts = Contexts(FAREWELL_MS)
    names = [f"tcp://host-{number}:5555" for number in range(3 * CONTEXTS_MAX)]
    taken = Counter(contexts.take(name) for name in names)
    assert len(taken) == CONTEXTS_MAX
    assert set(taken.values()) == {3}
    for name in names[: CONTEXTS_MAX + 1]:
        contexts.give_back(name)
    assert not any(context.closed for context in taken)
    contexts.close()
    wait_until(lambda: all(context.closed for context in taken), "all have ended")


def test_without_room_for_a_context_another_is_shared() -> None:
    contexts = Contexts(FAREWELL_MS)
    with no_file_more(spare=4), pytest.raises(ResourceError, match=r"open files \(ulimit -n\)"):
        contexts.take("tcp://host-1:5555")
    shared = contexts.take("tcp://127.0.0.1:1")
    with no_file_more(spare=4):
        assert contexts.take("tcp://host-1:5555") is shared
    contexts.give_back("tcp://host-1:5555")
    contexts.close()
    wait_until(lambda: shared.closed, "it has ended")


@pytest.mark.parametrize("spare", [0, 1, 2, 5, 9, 10, 12, 16, 20])
def test_a_job_goes_on_where_no_file_more_can_be_opened_for_other_feeders(spare: int) -> None:
    with FakeNode() as node:
        loader = make_loader(node, timeout_s=DEADLINE_S)
        batches = iter(loader)
        next(batches)
        # No dotted quad counts as a name, and is looked up without a name server.
        listed = (node.endpoint, *(f"tcp://127.{number}:9" for number in range(1, 6)))
        with no_file_more(spare=spare):
            loader._transport._list(listed)
            wait_until(lambda: len(loader._session._links) == len(listed), "all are dialled")
            assert next(batches).index == 1
        assert next(batches).index == 2
        threads = set(threading.enumerate())
        loader.close()
        threads.remove(loader._transport._thread)
        wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")


def test_a_name_has_a_context_that_ends_with_its_last_link() -> None:
    contexts = Contexts(FAREWELL_MS)
    shared = contexts.take("tcp://127.0.0.1:1")
    first, sibling = (contexts.take(f"tcp://host-1:{port}") for port in (5555, 5556))
    other = contexts.take("tcp://host-2:5555")
    assert first is sibling
    assert len({shared, first, other}) == 3
    contexts.give_back("tcp://host-1:5556")
    assert not first.closed
    contexts.give_back("tcp://host-1:5555")
    wait_until(lambda: first.closed, "it has ended")
    again = contexts.take("tcp://host-1:5555")
    assert again is not first
    contexts.close()
    assert (shared.closed, other.closed, again.closed) == (True, True, True)
