"""Batches that are copied to a client of this machine, which could read them in place."""

from tests.support.session_shell import Shell

A = b"A"


def greeted(*, is_local: bool, is_ipc: bool) -> Shell:
    """Return a node process with a session."""
    shell = Shell()
    shell.is_local, shell.is_ipc = is_local, is_ipc
    shell.join()
    shell.hello(A)
    return shell


def take(shell: Shell) -> dict[str, int]:
    """Return the fallbacks after two batches."""
    shell.request(A, [(0, 0), (0, 1)], [])
    shell.finish()
    assert shell.record.batches == 2
    return shell.counters.fallbacks


def test_a_client_of_another_machine_is_no_fallback() -> None:
    assert not take(greeted(is_local=False, is_ipc=False))


def test_a_client_of_this_machine_over_tcp_is_one() -> None:
    assert take(greeted(is_local=True, is_ipc=False)) == {"copied-tcp": 2}


def test_so_is_a_client_over_ipc_that_claims_no_slots() -> None:
    assert take(greeted(is_local=True, is_ipc=True)) == {"copied-unclaimed": 2}


def test_a_claim_that_could_not_be_granted_is_told_apart() -> None:
    shell = greeted(is_local=True, is_ipc=True)
    session = shell.clients[A].session
    assert shell.claim(session)
    shell.unmap(session, has_died=False)  # the descriptor could not be sent
    assert take(shell) == {"copied-refused": 2}


def test_batches_in_place_are_none() -> None:
    shell = greeted(is_local=True, is_ipc=True)
    assert shell.claim(shell.clients[A].session)
    assert not take(shell)
