"""Limits of one client: a refusal names the limit, and other clients are not affected."""

import pytest

from feeder.session.admission import HelloReceived
from feeder.wire.messages import Hello, Refused, Welcome
from tests.support.session_shell import SLOT_BYTES, Shell, limits, recipe


class Clients:
    """Peers that send a Hello; the account of a peer is its first letter."""

    def __init__(self, **fields: float) -> None:
        self.shell = Shell(limits(**({"sessions_max": 99} | fields)))
        self.shell.join()

    def hello(self, peer: bytes, *, window: int = 1, **fields: object) -> Welcome | Refused:
        session, self.shell.next_session = self.shell.next_session, self.shell.next_session + 1
        hello = Hello(dataset="d", recipe=recipe(**fields), seed=1, window=window, client="x")
        account = peer[:1].decode()
        self.shell.apply(HelloReceived(session, peer, hello, 1 << 40, account))
        answer = self.shell.inbox[-1][1]
        assert self.shell.inbox[-1][0] == peer
        assert isinstance(answer, Welcome | Refused)
        return answer


def refused(answer: Welcome | Refused, code: str, *words: str) -> None:
    assert isinstance(answer, Refused)
    assert answer.code == code
    for word in words:
        assert word in answer.message


def test_one_client_cannot_take_all_sessions() -> None:
    clients = Clients(client_sessions_max=2)
    for peer in (b"a1", b"a2"):
        assert isinstance(clients.hello(peer), Welcome)
    refused(clients.hello(b"a3"), "clients", "'a'", "2 sessions", "client_sessions_max")
    assert isinstance(clients.hello(b"b1"), Welcome)
    clients.shell.bye(b"a1")
    clients.shell.close_slots(0)
    assert isinstance(clients.hello(b"a3"), Welcome)


def test_one_client_cannot_take_all_slot_memory() -> None:
    clients = Clients(slots_bytes=9 * SLOT_BYTES, client_slots_bytes=4 * SLOT_BYTES)
    first = clients.hello(b"a1", window=3)
    assert isinstance(first, Welcome)
    second = clients.hello(b"a2", window=3)
    assert isinstance(second, Welcome)
    assert (first.window, second.window) == (3, 1)
    refused(clients.hello(b"a3"), "memory", "'a'", "0.0 MB left", "client_slots_bytes")
    assert isinstance(clients.hello(b"b1", window=4), Welcome)


def test_memory_of_ended_sessions_counts_until_it_is_freed() -> None:
    clients = Clients(slots_bytes=9 * SLOT_BYTES, client_slots_bytes=2 * SLOT_BYTES)
    welcome = clients.hello(b"a1", window=2)
    assert isinstance(welcome, Welcome)
    assert clients.shell.claim(welcome.session)
    clients.shell.bye(b"a1")
    refused(clients.hello(b"a2"), "memory", "client_slots_bytes")
    clients.shell.unmap(welcome.session)
    clients.shell.close_slots(0)
    assert isinstance(clients.hello(b"a2"), Welcome)


def test_one_client_cannot_use_all_recipes() -> None:
    clients = Clients(client_recipes_max=2, recipes_max=3)
    assert isinstance(clients.hello(b"a1"), Welcome)
    assert isinstance(clients.hello(b"a2", image_size=9), Welcome)
    assert isinstance(clients.hello(b"a3"), Welcome), "the same recipe again does not count"
    refused(clients.hello(b"a4", image_size=10), "recipes", "'a'", "client_recipes_max")
    assert isinstance(clients.hello(b"b1", image_size=10), Welcome)
    refused(clients.hello(b"b2", image_size=11), "recipes", "3 different", "recipes_max")
    assert isinstance(clients.hello(b"b2", image_size=9), Welcome)


@pytest.mark.parametrize("field", ["client_slots_bytes", "slots_bytes"])
def test_a_batch_that_never_fits_is_refused_with_the_key_to_raise(field: str) -> None:
    clients = Clients(**{field: SLOT_BYTES})
    refused(clients.hello(b"a1", batch_size=91), "memory", field)
