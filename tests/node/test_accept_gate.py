"""The gate of listeners: one connection at a time, at the rate of a token bucket."""

from feeder.node.polling import BURST, CONNECTIONS_A_S, AcceptGate


def accept_until_delayed(gate: AcceptGate, now_s: float) -> int:
    """Accept connections at one moment; return how many came before one had to wait."""
    accepted = 0
    while True:
        gate.accepted(now_s)
        if gate.due_s > now_s:
            return accepted
        accepted += 1


def test_new_connections_are_a_burst_and_then_a_rate() -> None:
    gate = AcceptGate()
    assert abs(accept_until_delayed(gate, 1000.0) - BURST) <= 1
    assert gate.due_s <= 1000.0 + 2 / CONNECTIONS_A_S
    assert abs(accept_until_delayed(gate, 1001.0) - CONNECTIONS_A_S) <= 2
    assert abs(accept_until_delayed(gate, 2000.0) - BURST) <= 1, "unused time earns one burst"


def test_failed_accept_is_retried_later() -> None:
    gate = AcceptGate()
    gate.failed(1000.0)
    assert 1000.0 < gate.due_s < 1001.0
    gate.run_due(gate.due_s)
    assert gate.due_s == float("inf")
