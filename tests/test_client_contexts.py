"""ZeroMQ contexts of the client: one for all addresses, one for each host name."""

import pytest

from tests.daemon import wait_until
from trainer_client._contexts import Contexts

FAREWELL_MS = 200


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
