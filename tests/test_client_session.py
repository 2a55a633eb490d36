"""The client's conversation with a node, on a clock that the test turns."""

import ast
from pathlib import Path

import pytest

import trainer_client
from feeder.errors import ConfigError, DatasetError, FeederError, PeerError, ProtocolError
from feeder.recipe import Recipe
from feeder.wire import (
    Bye,
    Chunk,
    ClientMessage,
    Draining,
    Failed,
    Hello,
    Lent,
    Ping,
    Pong,
    Refused,
    RefusedCode,
    Request,
    Welcome,
)
from trainer_client._batch import BatchBuffer
from trainer_client._prefetch import Prefetch
from trainer_client._session import (
    CLAIM_S,
    PING_INTERVAL_S,
    RETRY_INTERVAL_S,
    SILENCE_S,
    ClientSession,
    Job,
)

PEER = "tcp://feeder-3:5555"
RECIPE = Recipe.for_split("train", batch_size=4, image_size=8)
HELLO = Hello(dataset="birds", recipe=RECIPE, seed=7, window=2, client="me")


def make_session() -> ClientSession:
    prefetch = Prefetch(RECIPE, rank=0, world_size=1, buffers=3)
    return ClientSession(Job(endpoint=PEER, hello=HELLO), prefetch)


def welcome(session: int = 1, *, fingerprint: str = "f1", window: int = 2) -> Welcome:
    return Welcome(
        session=session,
        dataset="birds",
        fingerprint=fingerprint,
        recipe_fingerprint=RECIPE.fingerprint(),
        classes=("a", "b"),
        samples=40,
        batches=10,
        shards=1,
        lanes=1,
        window=window,
        chunk_images=4,
        node="n",
        number=0,
        incarnation=1,
        siblings=((PEER,),),
        feeder_version="0.1",
        self_test="5" * 32,
        libraries={},
    )


def serve(now_s: float = 0.0) -> ClientSession:
    """Return a session that is welcome and fetches epoch 0."""
    session = make_session()
    session.connected(now_s)
    session.heard(welcome(), now_s)
    session.begin(0)
    assert session.drain(now_s) == [HELLO, Request(session=1, number=1, want=((0, 0), (0, 1)))]
    return session


def whole_chunk(session: int, index: int, epoch: int = 0) -> tuple[Chunk, list[int]]:
    header = Chunk(session=session, epoch=epoch, index=index, first=0, images=4, valid=4)
    return header, [4 * 8 * 8 * 3, 32, 32]


def arrive(session: ClientSession, number: int, index: int, now_s: float = 0.0) -> bool:
    placement = session.place(*whole_chunk(number, index), now_s)
    if placement is not None:
        session.stored(placement, now_s)
    return placement is not None


def run_clock(session: ClientSession, until_s: float, now_s: float = 0.0) -> list[ClientMessage]:
    """Tick whenever something is due; return what was sent."""
    sent: list[ClientMessage] = []
    while (now_s := max(now_s, session.due_s())) <= until_s:
        session.tick(now_s)
        sent += session.drain(now_s)
    return sent


def refuse(session: ClientSession, code: RefusedCode, number: int | None = None) -> None:
    session.heard(Refused(code=code, message="because of it", session=number), 1.0)


def test_nothing_is_said_before_the_connection_is_up() -> None:
    session = make_session()
    session.tick(100.0)
    assert session.drain(100.0) == []
    assert session.due_s() == float("inf")
    session.connected(100.0)
    assert session.drain(100.0) == [HELLO]


def test_a_complete_batch_is_released_and_the_next_is_wanted_in_one_message() -> None:
    session = serve()
    assert arrive(session, 1, 0)
    assert session.drain(0.0) == [Request(session=1, number=2, want=((0, 2),), release=((0, 0),))]
    batch = session.take()
    assert batch is not None
    assert batch.key == (0, 0)
    session.give_back(batch.buffer)
    assert session.drain(0.0) == [], "two batches are wanted already"


def test_pings_go_out_every_second_while_there_is_nothing_else_to_say() -> None:
    session = serve()
    for second in range(1, 20):
        assert session.due_s() == second * PING_INTERVAL_S
        session.tick(float(second))
        assert session.drain(float(second)) == [Ping(session=1)]
        session.heard(Pong(session=1), second + 0.25)


def test_silence_leads_to_a_new_greeting_and_the_same_requests() -> None:
    session = serve()
    sent = run_clock(session, SILENCE_S)
    assert sent == [*[Ping(session=1)] * 4, Bye(session=1), HELLO]
    session.heard(welcome(2), 6.0)
    assert session.drain(6.0) == [Request(session=2, number=2, want=((0, 0), (0, 1)))]
    assert session.welcomes == 2
    assert not arrive(session, 1, 0, 6.0), "chunks of the former session count no more"
    assert arrive(session, 2, 0, 6.0)


def test_a_greeting_without_an_answer_is_repeated() -> None:
    session = make_session()
    session.connected(0.0)
    assert run_clock(session, 2 * SILENCE_S) == [HELLO] * 3


def test_a_lost_connection_is_followed_by_a_greeting_and_what_is_missing() -> None:
    session = serve()
    arrive(session, 1, 1)
    session.disconnected()
    assert session.drain(3.0) == []
    session.connected(4.0)
    assert session.drain(4.0) == [HELLO]
    session.heard(welcome(1), 4.1)  # a restarted node may well use the same number again
    assert session.drain(4.1) == [Request(session=1, number=2, want=((0, 0), (0, 2)))]


def test_a_session_that_the_node_forgot_is_greeted_anew_at_once() -> None:
    session = serve()
    refuse(session, "unknown-session", 1)
    assert session.drain(1.0) == [HELLO]
    refuse(session, "unknown-session", 1)
    assert session.drain(1.0) == [], "that was about the former session"


@pytest.mark.parametrize("code", ["memory", "clients", "draining"])
def test_a_refusal_that_may_pass_is_followed_by_another_greeting(code: RefusedCode) -> None:
    session = make_session()
    session.connected(1.0)
    session.drain(1.0)
    refuse(session, code)
    assert session.due_s() == 1.0 + RETRY_INTERVAL_S
    assert session.explain(2.0) == "it refuses for the moment: because of it"
    assert run_clock(session, 1.0 + RETRY_INTERVAL_S) == [HELLO]
    session.heard(welcome(), 2.0)
    assert session.check().samples == 40


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
    session = make_session()
    session.connected(1.0)
    refuse(session, code)
    for call in (session.check, session.take, lambda: session.begin(0)):
        with pytest.raises(kind, match="tcp://feeder-3:5555: because of it"):
            call()
    assert session.drain(9.0) == []
    assert session.due_s() == float("inf")


def test_a_refusal_about_a_former_session_is_nothing_to_us() -> None:
    session = serve()
    refuse(session, "window", 99)
    assert session.error is None


def test_a_second_welcome_takes_the_place_of_the_first() -> None:
    session = serve()
    session.heard(welcome(2), 1.0)
    assert session.drain(1.0) == [
        Bye(session=1),
        Request(session=2, number=2, want=((0, 0), (0, 1))),
    ]


def test_another_dataset_after_a_restart_is_an_error() -> None:
    session = serve()
    session.disconnected()
    session.connected(1.0)
    with pytest.raises(DatasetError, match="'birds' changed while the daemon restarted: its fing"):
        session.heard(welcome(2, fingerprint="f2"), 1.0)


def test_a_recipe_that_the_node_understands_differently_is_an_error() -> None:
    session = make_session()
    session.connected(0.0)
    other = Recipe.for_split("train", batch_size=4, image_size=16).fingerprint()
    message = Welcome(
        **{
            name: getattr(welcome(), name) if name != "recipe_fingerprint" else other
            for name in Welcome.__struct_fields__
        }
    )
    with pytest.raises(ProtocolError, match=r"feeder 0.1 there understands the recipe differently"):
        session.heard(message, 0.0)


def test_a_draining_node_is_asked_for_nothing_more_but_heard_out() -> None:
    crossed = Refused(code="draining", message="no more", session=1)
    for word in (Draining(session=1), crossed):
        session = serve()
        session.heard(word, 1.0)
        assert arrive(session, 1, 0, 1.0)
        assert session.drain(1.0) == [Request(session=1, number=1, release=((0, 0),))]
        assert "it is shutting down" in session.explain(1.0)
        session.disconnected()
        session.connected(2.0)
        session.heard(welcome(2), 2.0)
        assert session.drain(2.0)[-1] == Request(session=2, number=2, want=((0, 1), (0, 2)))


def test_a_failed_batch_raises_with_the_nodes_reason_and_the_peer() -> None:
    session = serve()
    failure = Failed(session=1, epoch=0, index=0, code="dataset", message="sample 3 is broken")
    session.heard(failure, 0.0)
    with pytest.raises(
        DatasetError,
        match=r"tcp://feeder-3:5555: batch 0 of epoch 0 cannot be had: sample 3 is broken \(data",
    ):
        session.take()


def test_chunks_that_break_the_rules_name_the_peer() -> None:
    session = serve()
    header, _ = whole_chunk(1, 0)
    with pytest.raises(ProtocolError, match="tcp://feeder-3:5555: a chunk of batch 0 of epoch 0"):
        session.place(header, [1, 2, 3], 0.0)


def test_every_wait_can_be_explained() -> None:
    session = make_session()
    session.attempt_failed()
    assert "nobody answers there (1 attempts to connect failed)" in session.explain(0.0)
    session.connected(0.0)
    assert "does not answer the greeting; is it a feeder?" in session.explain(1.0)
    session.heard(welcome(), 2.0)
    assert "it was not asked for yet" in session.explain(2.0)
    session.begin(0)
    session.drain(2.0)
    assert session.explain(3.5) == "it spoke 1.5 s ago, but 0 of 1 chunks are here"
    session.disconnected()
    session.attempt_failed()
    assert "the connection is lost, 1 attempts to restore it failed" in session.explain(4.0)


def test_a_session_without_a_welcome_cannot_begin() -> None:
    with pytest.raises(PeerError, match="no welcome yet"):
        make_session().begin(0)


def test_the_first_batch_is_timed_from_its_request() -> None:
    session = serve(10.0)
    arrive(session, 1, 0, 12.5)
    arrive(session, 1, 1, 14.0)
    assert session.first_batch_s == 2.5


def test_closing_says_goodbye() -> None:
    assert serve().farewell() == [Bye(session=1)]
    assert make_session().farewell() == []


@pytest.mark.parametrize("module", ["_prefetch", "_session"])
def test_the_state_machine_imports_neither_sockets_nor_clocks(module: str) -> None:
    source = Path(trainer_client.__path__[0], f"{module}.py").read_text(encoding="utf-8")
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {"collections", "dataclasses", "typing", "feeder", "trainer_client"}


# Slots that are mapped


def share(now_s: float = 0.0) -> ClientSession:
    """Return a session over ipc that was welcomed and waits for its slots."""
    prefetch = Prefetch(RECIPE, rank=0, world_size=1, buffers=3)
    session = ClientSession(Job(endpoint="ipc:///run/node", hello=HELLO), prefetch)
    session.connected(now_s)
    session.heard(welcome(), now_s)
    session.begin(0)
    return session


def map_slots(session: ClientSession, number: int = 1) -> list[BatchBuffer]:
    slots = [BatchBuffer(4, 8, pinned=False) for _ in range(2)]
    session.claimed(number, slots)
    return slots


def lent(index: int, slot: int, *, session: int = 1, request: int = 1, **fields: int) -> Lent:
    values = {"epoch": 0, "valid": 4} | fields
    return Lent(session=session, request=request, index=index, slot=slot, **values)


def test_slots_are_claimed_once_and_nothing_is_asked_for_before_the_answer() -> None:
    session = share()
    claim = session.take_claim()
    assert claim is not None
    assert (claim.session, claim.door) == (1, "/run/node.slots")
    assert (claim.layout.slots, claim.layout.batch_size, claim.layout.image_size) == (2, 4, 8)
    assert session.take_claim() is None
    assert session.drain(0.0) == [HELLO]
    map_slots(session)
    assert session.drain(0.0) == [Request(session=1, number=1, want=((0, 0), (0, 1)))]
    assert session.copied_because is None


def test_a_lent_batch_is_released_when_it_is_given_back_and_not_before() -> None:
    session = share()
    slots = map_slots(session)
    session.drain(0.0)
    session.heard(lent(0, 1), 0.1)
    assert session.first_batch_s == pytest.approx(0.1)
    assert session.drain(0.1) == []
    batch = session.take()
    assert batch is not None
    assert batch.lent is slots[1]
    assert session.drain(0.2) == [], "it is being read"
    session.give_back(batch.buffer)
    assert session.drain(0.3) == [
        Request(session=1, number=2, want=((0, 2),), release=((0, 0),)),
    ]


def test_where_slots_cannot_be_mapped_batches_are_copied_and_the_reason_is_known() -> None:
    session = share()
    session.not_shared(1, "/run/node.slots: No such file or directory")
    assert session.drain(0.0)[-1] == Request(session=1, number=1, want=((0, 0), (0, 1)))
    assert session.copied_because == "/run/node.slots: No such file or directory"
    session.disconnected()
    session.connected(1.0)
    session.heard(welcome(2), 1.0)
    assert session.take_claim() is not None, "the next session tries again"


def test_a_claim_that_is_not_answered_in_time_is_given_up_for_good() -> None:
    session = share()
    assert session.due_s() <= CLAIM_S
    session.tick(CLAIM_S + 0.01)
    assert not session.awaits_slots
    assert session.copied_because == "no answer to the claim within 2 s"
    assert any(isinstance(message, Request) for message in session.drain(2.1))
    map_slots(session)
    assert session.slots_mapped == 0, "it comes too late"
    session.disconnected()
    session.connected(3.0)
    session.heard(welcome(2), 3.0)
    assert session.take_claim() is None
    assert not session.awaits_slots


def test_what_was_lent_outlives_its_session_and_is_released_in_no_other() -> None:
    session = share()
    slots = map_slots(session)
    session.drain(0.0)
    session.heard(lent(0, 0), 0.1)
    session.heard(lent(1, 1), 0.1)
    first = session.take()
    assert first is not None
    session.disconnected()
    session.connected(1.0)
    session.heard(welcome(2), 1.0)
    map_slots(session, 2)
    session.give_back(first.buffer)
    second = session.take()
    assert second is not None
    assert second.lent is slots[1]
    session.give_back(second.buffer)
    requests = [m for m in session.drain(1.0) if isinstance(m, Request)]
    assert requests == [Request(session=2, number=2, want=((0, 2), (0, 3)))]


def test_word_of_a_batch_that_was_given_up_and_asked_for_again_is_not_believed() -> None:
    session = share()
    map_slots(session)
    session.drain(0.0)
    session.begin(1)
    session.drain(0.0)
    session.begin(0)
    assert session.drain(0.0)[-1] == Request(
        session=1, number=3, want=((0, 0), (0, 1)), release=((1, 0), (1, 1))
    )
    session.heard(lent(0, 0, request=1), 0.1)
    assert session.take() is None, "the node has that slot back and may write to it"
    session.heard(lent(0, 1, request=3), 0.2)
    assert session.take() is not None


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (lent(0, 2), "slot 2 was lent, 2 are mapped here"),
        (lent(0, 0, valid=3), "was lent with 3 real rows, it must have 4"),
    ],
)
def test_what_cannot_be_lent_is_a_protocol_error(message: Lent, error: str) -> None:
    session = share()
    map_slots(session)
    session.drain(0.0)
    with pytest.raises(ProtocolError, match=f"ipc:///run/node: .*{error}"):
        session.heard(message, 0.1)
