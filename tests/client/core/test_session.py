"""The client's session with one node, with a clock that the test sets."""

import pytest

from feeder.client.core.events import (
    ClaimSlots,
    Dial,
    EndpointsListed,
    Instruction,
    Log,
    MessageReceived,
)
from feeder.client.core.node_link import (
    PING_INTERVAL_S,
    RETRY_INTERVAL_S,
    SILENCE_S,
)
from feeder.client.core.prefetch import BatchSequence
from feeder.errors import ConfigError, DatasetError, FeederError, PeerError, ProtocolError
from feeder.wire.messages import (
    Bye,
    Draining,
    Hello,
    Lent,
    NotReady,
    Ping,
    Pong,
    Refused,
    RefusedCode,
    Request,
)
from tests.support.client_shell import NAME, Shell, asked, hello, lent, released, sends, welcome

PEER = "tcp://feeder-3:5555"
IPC = "ipc:///run/node"
SESSION = " (node n, session 00000001)"
"""As the shell's node and its first session are named at the end of log lines."""
HELLO = hello()


def make_shell() -> Shell:
    return Shell(PEER)


def serve(now_s: float = 0.0) -> Shell:
    """Return a client that has a session and fetches epoch 0."""
    shell = make_shell()
    shell.now_s = now_s
    assert sends(shell.connect()) == [HELLO]
    assert sends(shell.receive(welcome())) == []
    shell.session.begin(BatchSequence(0, range(10)))
    assert sends(shell.do()) == [Request(session=1, number=1, want=((0, 0), (0, 1)))]
    return shell


def refuse(shell: Shell, code: RefusedCode, number: int | None = None) -> list[Instruction]:
    return shell.receive(Refused(code=code, message="because of it", session=number))


def test_endpoints_are_dialled_once_and_greeted_until_they_answer() -> None:
    shell = make_shell()
    assert shell.links == {0: PEER}
    assert shell.do_at(100.0) == []
    assert shell.session.due_s == float("inf"), "nothing is sent before the connection is up"
    other = "tcp://feeder-4:5555"
    assert shell.do(EndpointsListed({PEER: "", other: ""})) == [Dial(1, other)]
    assert sends(shell.connect() + shell.run_until(100.0 + 2 * SILENCE_S)) == [HELLO] * 3
    with pytest.raises(PeerError, match=f"{NAME}: there was no welcome yet"):
        shell.session.begin(BatchSequence(0, range(10)))
    assert shell.session.byes() == []


def test_batches_are_taken_in_order_and_each_is_replaced_in_the_message_that_releases_it() -> None:
    shell = serve()
    assert sends(shell.answer(1)) == [
        Request(session=1, number=2, want=((0, 2),), release=((0, 1),))
    ]
    assert not shell.prefetch.ready
    assert shell.session.take() is None
    assert released(shell.answer(0)) == [(0, 0)]
    assert shell.prefetch.ready == 2
    assert shell.take_keys() == [(0, 0), (0, 1)]
    assert asked(shell.do()) == [(0, 3)], "two are wanted then"


def next_ping(shell: Shell) -> Ping:
    """Return the ping that is sent within the next second, whatever else is."""
    shell.now_s += PING_INTERVAL_S
    [ping] = [each for each in sends(shell.do()) if isinstance(each, Ping)]
    return ping


def test_pings_report_the_waits_of_the_training_loop_while_they_last() -> None:
    shell = serve(100.0)
    shell.session.waits_since_s = 100.25
    shell.cpu_s = 7.0
    ping = next_ping(shell)
    assert (ping.clock_s, ping.waited_s, ping.cpu_s) == (1.0, 0.75, 7.0)
    assert next_ping(shell).waited_s == 1.75
    shell.now_s = 102.5
    shell.answer(0)
    shell.session.waits_since_s = None
    assert next_ping(shell).waited_s == 2.25
    assert next_ping(shell).waited_s == 2.25, "it does not wait any more"
    shell.lose()
    shell.connect()
    shell.receive(welcome(2))
    assert next_ping(shell).waited_s == 0.0, "since the welcome"


def test_silence_leads_to_a_new_greeting_and_the_same_requests() -> None:
    shell = serve()
    sent = sends(shell.run_until(SILENCE_S))
    assert [type(message) for message in sent] == [*[Ping] * 4, Bye, Hello]
    assert shell.logged[-1].text == (
        f"{PEER}: the session is lost: its node was silent for 5 s{SESSION}"
    )
    shell.now_s = 6.0
    assert asked(shell.receive(welcome(2))) == [(0, 0), (0, 1)]
    assert shell.session.reconnects == 1
    assert shell.session.scheduler.retried == 2
    shell.answer(0, session=1)
    assert shell.session.take() is None, "chunks of the former session count no more"
    assert shell.prefetch.chunks_discarded == 1
    shell.answer(0, session=2)
    assert shell.session.take() is not None


def test_after_a_lost_connection_missing_batches_are_requested_again() -> None:
    shell = serve()
    shell.answer(1)
    assert shell.lose() == [Log(f"{PEER}: the session is lost: its connection has ended{SESSION}")]
    assert shell.run_until(4.0) == []
    assert sends(shell.connect()) == [HELLO]
    # A restarted node may well use the same number again.
    assert asked(shell.receive(welcome(1, incarnation=2))) == [(0, 0), (0, 2)]
    assert shell.session.reconnects == 1


def test_a_session_that_the_node_has_lost_is_greeted_again_at_once() -> None:
    shell = serve()
    assert sends(refuse(shell, "unknown-session", 1)) == [HELLO], "and no Bye"
    assert refuse(shell, "unknown-session", 1) == [], "that was about the former session"


@pytest.mark.parametrize("code", ["memory", "clients", "draining"])
def test_a_temporary_refusal_explains_the_wait_and_is_followed_by_another_greeting(
    code: RefusedCode,
) -> None:
    shell = make_shell()
    shell.now_s = 1.0
    shell.connect()
    refuse(shell, code)
    assert shell.session.due_s == 1.0 + RETRY_INTERVAL_S
    assert shell.session.explain(2.0) == "it refuses for the moment: because of it"
    assert sends(shell.run_until(1.0 + RETRY_INTERVAL_S)) == [HELLO]
    assert shell.session.explain(2.0) == "it refuses for the moment: because of it"
    shell.run_until(1.0 + RETRY_INTERVAL_S + SILENCE_S)
    assert "does not answer the greeting" in shell.session.explain(7.0), "it has become silent"
    shell.receive(welcome())
    assert shell.session.check().samples == 40


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unknown-dataset", DatasetError),
        ("bad-recipe", ConfigError),
        ("malformed", ProtocolError),
        ("version", ProtocolError),
        ("window", ProtocolError),
        ("range", ProtocolError),
    ],
)
def test_other_refusals_end_the_session_for_good(
    code: RefusedCode, kind: type[FeederError]
) -> None:
    shell = make_shell()
    shell.connect()
    refuse(shell, code)
    for call in (
        shell.session.check,
        shell.session.take,
        lambda: shell.session.begin(BatchSequence(0, range(10))),
    ):
        with pytest.raises(kind, match="tcp://feeder-3:5555: because of it"):
            call()
    assert shell.session.error is not None, "a wait for it is over"
    assert shell.do_at(9.0) == []
    assert shell.session.due_s == float("inf")


def test_another_dataset_after_a_restart_is_an_error() -> None:
    shell = serve()
    shell.lose()
    shell.connect()
    shell.receive(welcome(2, content="f2"))
    with pytest.raises(
        DatasetError, match=f"{PEER}: dataset 'birds' changed while the daemon restarted: its con"
    ):
        shell.session.take()


def test_a_draining_node_gets_no_requests_but_its_batches_count() -> None:
    crossed = Refused(code="draining", message="no more", session=1)
    for word in (Draining(session=1), crossed):
        shell = serve()
        shell.now_s = 1.0
        shell.receive(word)
        assert len(shell.session.served_endpoints) == 0
        assert sends(shell.answer(0)) == [Request(session=1, number=1, release=((0, 0),))]
        assert shell.prefetch.ready
        shell.lose()
        shell.now_s = 2.0
        shell.connect()
        assert asked(shell.receive(welcome(2))) == [(0, 1), (0, 2)]


def test_every_wait_has_an_explanation() -> None:
    shell = make_shell()
    explain = shell.session.explain
    shell.lose()
    assert "nothing answers there (1 attempts to connect failed)" in explain(0.0)
    assert Shell().session.explain(0.0) == "no endpoint is known yet"
    shell.connect()
    assert "does not answer the greeting; is it a feeder?" in explain(1.0)
    shell.now_s = 2.0
    shell.receive(welcome())
    assert "the next batch was not requested yet" in explain(2.0)
    shell.session.begin(BatchSequence(0, range(10)))
    shell.do()
    late = "its last message came 1.5 s ago, but 0 of its 4 rows have arrived"
    assert explain(3.5) == f"{late}{SESSION}"
    shell.receive(Draining(session=1))
    assert "it is shutting down" in explain(3.5)
    shell.lose()
    shell.lose()
    assert "the connection is lost, 1 attempts to restore it failed" in explain(4.0)


def test_a_feeder_that_packs_is_greeted_again_and_its_progress_counts() -> None:
    shell = make_shell()
    shell.connect()

    def report(advances: int) -> int:
        shell.receive(NotReady(text="packing d, 34 %", advances=advances))
        return shell.session.packing_advances

    numbers = [report(advances) for advances in (7, 7, 8, 3, 8, 9)]
    assert numbers == [1, 1, 2, 2, 2, 3], "after a restart only what is new counts"
    assert shell.warnings == [f"{PEER} is packing d, 34 %: waiting"]
    assert shell.session.explain(1.0) == "it is packing d, 34 %"
    assert sends(shell.run_until(RETRY_INTERVAL_S)) == [HELLO]
    assert shell.session.explain(8.0) == "it is packing d, 34 %, and has not advanced for 8 s"
    shell.lose()
    assert "the connection is lost" in shell.session.explain(8.0)
    shell.connect()
    shell.receive(welcome())
    assert report(10) == 3, "of a session that has begun"


def test_a_node_that_has_gone_quiet_is_told_from_one_that_is_late() -> None:
    shell = make_shell()
    shell.connect()
    shell.receive(welcome())
    shell.session.begin(BatchSequence(0, range(10)))
    shell.do()
    explain, verdict = shell.session.explain, shell.session.verdict
    shell.do_at(2.0, MessageReceived(0, Pong(session=1, verdict="healthy")))
    late = "its last message came 2.4 s ago, but 0 of its 4 rows have arrived"
    assert explain(4.4) == f"{late}{SESSION}"
    assert verdict(4.4) == "healthy"
    shell.run_until(4.6)
    quiet = "no byte came from it for 2.6 s, and pings have no answer: the network hangs, or its"
    assert explain(4.6).startswith(quiet)
    assert verdict(4.6).startswith(f"hung-network: {PEER}: {quiet}")
    shell.run_until(9.0)  # it was greeted again
    assert explain(9.0).startswith("no byte came from it for 7.0 s")
    assert verdict(9.0).startswith(f"hung-network: {PEER}: no byte came from it for 7.0 s")
    shell.lose()
    assert verdict(9.0).startswith(f"lost-connection: {PEER}: the connection is lost")
    shell.connect()
    shell.receive(welcome(session=2))
    assert verdict(9.0) == "healthy"


def test_a_wait_for_a_store_names_it() -> None:
    shell = make_shell()
    shell.connect()
    shell.receive(welcome())
    shell.session.begin(BatchSequence(0, range(10)))
    shell.do()
    shell.receive(Pong(session=1, store="s3://bucket/set"))
    text = shell.session.explain(0.0)
    late = "0 of its 4 rows have arrived: batches wait for samples from s3://bucket/set"
    assert text == f"its last message came 0.0 s ago, but {late}{SESSION}"
    shell.receive(Pong(session=1))
    assert "bucket" not in shell.session.explain(0.0)


def test_a_process_that_was_stopped_itself_blames_no_network() -> None:
    shell = make_shell()
    shell.connect()
    shell.receive(welcome())
    shell.do_at(2.0, MessageReceived(0, Pong(session=1, verdict="healthy")))
    assert shell.session.verdict(60.0) == "healthy", "nothing was read for 58 s"


# Slots that are mapped


def share() -> Shell:
    """Return a client over ipc that has a session and waits for its slots."""
    shell = Shell(IPC)
    shell.connect()
    shell.receive(welcome())
    shell.session.begin(BatchSequence(0, range(10)))
    assert asked(shell.do()) == []
    return shell


def share_slots() -> Shell:
    """Return a client with mapped slots that has requested two batches in request 1."""
    shell = share()
    shell.map_slots()
    return shell


def welcome_again(shell: Shell, session: int = 2) -> list[Instruction]:
    """Lose the connection and get another session."""
    shell.lose()
    shell.connect()
    return shell.receive(welcome(session))


def claims(instructions: list[Instruction]) -> list[ClaimSlots]:
    return [out for out in instructions if isinstance(out, ClaimSlots)]


def test_slots_are_claimed_once_and_nothing_is_requested_before_the_answer() -> None:
    shell = Shell(IPC)
    shell.connect()
    (claim,) = claims(shell.receive(welcome()))
    assert (claim.link, claim.session, claim.path) == (0, 1, "/run/node.slots")
    assert (claim.layout.slots, claim.layout.batch_size, claim.layout.pixel_bytes) == (
        2,
        4,
        4 * 8 * 8 * 3,
    )
    shell.session.begin(BatchSequence(0, range(10)))
    assert shell.do() == []
    assert len(shell.session.served_endpoints) == 0
    slots = shell.map_slots()
    assert len(slots) == 2
    assert shell.prefetch.load(0) == 2
    assert shell.session.copied_because is None
    texts = [line.text for line in shell.logged]
    assert texts == [f"{IPC}: batches are read in place, in its slots{SESSION}"]
    assert shell.warnings == []


def test_a_lent_batch_is_released_when_it_is_returned_and_not_before() -> None:
    shell = share()
    slots = shell.map_slots()
    shell.now_s = 0.1
    assert sends(shell.receive(lent(0, 1))) == []
    assert shell.session.first_batch_s == pytest.approx(0.1)
    batch = shell.session.take()
    assert batch is not None
    assert batch.lent is slots[1]
    assert shell.do() == [], "it is being read"
    shell.session.prefetch.return_buffer(batch.buffer)
    assert sends(shell.do()) == [
        Request(session=1, number=2, want=((0, 2),), release=((0, 0),)),
    ]


def test_batches_are_copied_with_a_reason_if_slots_cannot_be_mapped() -> None:
    shell = share()
    reason = "/run/node.slots: No such file or directory"
    assert asked(shell.refuse_slots(reason)) == [(0, 0), (0, 1)]
    assert shell.session.copied_because == reason
    assert shell.warnings == [f"{IPC}: batches are copied over the socket: {reason}{SESSION}"]
    assert claims(welcome_again(shell)), "the next session tries again"
    shell.map_slots(session=1)
    assert len(shell.session.served_endpoints) == 0, "these are the former session's"


@pytest.mark.parametrize(
    ("endpoint", "share_memory", "reason"),
    [(PEER, True, "it is no ipc endpoint"), (IPC, False, "share_memory is off")],
)
def test_nothing_is_claimed_and_no_warning_logged_if_slots_are_not_wanted(
    endpoint: str, share_memory: bool, reason: str
) -> None:
    shell = Shell(endpoint, share_memory=share_memory, window=6)
    shell.connect()
    grants = "it grants 2 slots of the 6 requested, by its limits (window_max, slots_bytes, "
    assert shell.receive(welcome()) == [
        Log(
            f"{endpoint}: batches are copied over the socket: {reason}; {grants}"
            f"client_slots_bytes) and memory{SESSION}"
        )
    ]
    assert shell.session.copied_because == reason


def test_a_loan_outlives_its_session_and_is_released_in_no_other() -> None:
    shell = share()
    slots = shell.map_slots()
    shell.receive(lent(0, 0))
    shell.receive(lent(1, 1))
    first = shell.session.take()
    assert first is not None
    welcome_again(shell)
    shell.session.prefetch.return_buffer(first.buffer)
    second = shell.session.take()
    assert second is not None
    assert second.lent is slots[1]
    shell.session.prefetch.return_buffer(second.buffer)
    requests = sends(shell.do(), 0)
    assert requests == [], "the new session has no slots yet"
    shell.map_slots(session=2)
    assert shell.prefetch.load(0) == 2
    out = shell.receive(lent(2, 0, session=2, request=2))
    assert shell.take_keys() == [(0, 2)]
    assert released(out + shell.do()) == [(0, 2)]


def test_a_node_short_of_memory_gets_back_loans_that_cannot_be_taken_yet() -> None:
    shell = share_slots()
    shell.receive(lent(1, 1))  # batch 0 is still to come: this one cannot be taken
    shell.lose()
    shell.connect()
    shell.receive(Refused(code="memory", message="what you hold is too much"))
    assert shell.prefetch.lent == 0, "its slot, and with it the old session's memory, was let go"
    shell.run_until(shell.now_s + RETRY_INTERVAL_S)
    shell.receive(welcome(2))
    shell.map_slots(session=2)
    assert shell.prefetch.load(0) == 2, "both batches are asked for"


def test_nothing_is_taken_once_slots_are_released() -> None:
    shell = share_slots()
    shell.receive(lent(0, 1))
    shell.session.release_slots()
    assert shell.session.take() is None


@pytest.mark.parametrize(
    ("loans", "taken", "error"),
    [
        ([lent(0, 2)], 0, "slot 2 was lent, 2 are mapped here"),
        ([lent(0, 0, valid=3)], 0, "was lent with 3 real rows, it must have 4"),
        ([lent(0, 0), lent(1, 0)], 0, "slot 0 was lent for batch 1 .* not yet released"),
        ([lent(0, 0), lent(1, 0)], 1, "slot 0 was lent for batch 1 .* not yet released"),
    ],
)
def test_an_invalid_loan_is_a_protocol_error(loans: list[Lent], taken: int, error: str) -> None:
    shell = share_slots()
    for loan in loans:
        shell.receive(loan)
        if taken and loan is loans[0]:
            assert shell.session.take() is not None
    with pytest.raises(ProtocolError, match=f"ipc:///run/node: .*{error}"):
        shell.session.take()


def test_a_free_buffer_waits_for_another_unless_the_node_could_run_out_of_work() -> None:
    for window, may_wait in ((6, True), (3, False)):
        shell = Shell(IPC, window=window, buffers=window)
        shell.connect()
        shell.receive(welcome(window=window))
        shell.session.begin(BatchSequence(0, range(10)))
        shell.map_slots(slots=window)
        shell.session.handle(MessageReceived(0, lent(0, 0)), shell.now_s)  # without the clock
        assert shell.take_key() == (0, 0)
        assert shell.session.is_clock_due(spare=1) != may_wait
        assert len(asked(shell.do())) == 1
