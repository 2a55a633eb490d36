"""The client's session with several nodes: which one it asks, and which one instead."""

from itertools import pairwise

import msgspec
import pytest

from feeder.client.core.events import (
    Dial,
    Disconnected,
    EndpointsListed,
    HangUp,
    Instruction,
    MessageReceived,
    Send,
)
from feeder.client.core.node_link import QUIET_S, SILENCE_S
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.requests import HEDGES_MAX, RETRY_S
from feeder.errors import DatasetError, ProtocolError
from feeder.plan.recipe import Recipe
from feeder.wire.messages import (
    BatchKey,
    Bye,
    Draining,
    Failed,
    Ping,
    Pong,
    Refused,
    Request,
    Welcome,
)
from tests.support.client_shell import (
    NAME,
    RECIPE,
    Shell,
    asked,
    hello,
    make_scheduler,
    prefer,
    released,
    sends,
    welcome,
)

NODES = ("a", "b", "c")
ENDPOINTS = tuple(f"tcp://{node}:1" for node in NODES)

# An epoch's first ten batches are of one lane, the next ten of the other. Of a single lane, each
# node would own every second batch.
RECIPE_2 = msgspec.structs.replace(RECIPE, order_batch_size=40, lanes=2)
TWO_LANES = {"samples": 80, "batches": 20, "lanes": 2}
OWNER, NEXT = (
    NODES.index(name)
    for name in prefer(hello(recipe=RECIPE_2), NODES[:2], **TWO_LANES).order((0, 0))
)
"""Of the first ten batches: the links to the first two nodes."""

LATE_S = make_scheduler().late_after_s
RECIPE_5 = msgspec.structs.replace(RECIPE, lanes=5)


def greet(session: int, shell: Shell, **fields: object) -> Welcome:
    """Return a node's welcome to a client, with the window and the lanes that it wants."""
    greeting = shell.session.job.hello
    wanted: dict[str, object] = {"window": greeting.window}
    if greeting.recipe == RECIPE_2:
        wanted |= {"recipe_fingerprint": RECIPE_2.fingerprint(), **TWO_LANES}
    return welcome(session, **(wanted | fields))  # type: ignore[arg-type]


def join(shell: Shell, link: int, session: int = 0, **fields: object) -> list[Instruction]:
    """Connect a link and deliver its node's welcome, with a session numbered by the link."""
    shell.connect(link)
    return shell.receive(greet(session or link + 1, shell, **{"node": NODES[link]} | fields), link)


def serve(
    nodes: int = 2,
    *,
    buffers: int = 3,
    window: int = 8,
    recipe: Recipe = RECIPE_2,
    **fields: object,
) -> tuple[Shell, list[Instruction]]:
    """Return a client with a session on each node, and its instructions when epoch 0 began."""
    shell = Shell(*ENDPOINTS[:nodes], buffers=buffers, window=window, recipe=recipe)
    fields = {"recipe_fingerprint": recipe.fingerprint()} | fields
    for link in range(nodes):
        join(shell, link, **fields)
    shell.session.begin(BatchSequence(0, range(10)))
    return shell, shell.do()


def keys(*indices: int) -> list[BatchKey]:
    return [(0, index) for index in indices]


def fail(shell: Shell, index: int, link: int) -> list[Instruction]:
    reason = f"disk of {NODES[link]}"
    word = Failed(session=link + 1, epoch=0, index=index, code="dataset", message=reason)
    return shell.receive(word, link)


def pending(shell: Shell, link: int) -> int:
    """Return how many batches are requested on a link and not complete."""
    return sum(link in each.requests for each in shell.prefetch.held.values() if not each.settled)


def pass_time(shell: Shell, until_s: float, *speaking: int) -> list[Instruction]:
    """Advance the time, with a Pong of some nodes twice a second; return the instructions."""
    done = []
    while shell.now_s < until_s:
        done += shell.run_until(min(until_s, shell.now_s + 0.5))
        done += shell.do(*(MessageReceived(link, Pong(session=link + 1)) for link in speaking))
    return done


# Which node a batch is requested from


def test_a_lanes_owner_is_asked_first_and_the_next_one_when_it_has_its_share() -> None:
    _, out = serve()
    assert asked(out, OWNER) == keys(0, 1)
    assert asked(out, NEXT) == keys(2)


def test_a_node_is_told_which_batches_another_one_owns() -> None:
    _, out = serve()
    told = {
        send.link: send.message.unowned
        for send in out
        if isinstance(send, Send) and isinstance(send.message, Request)
    }
    assert told == {OWNER: (), NEXT: tuple(keys(2))}
    _, alone = serve(1)
    assert [request.unowned for request in sends(alone) if isinstance(request, Request)] == [()]


def test_nothing_is_requested_from_an_owner_with_a_full_window() -> None:
    shell = Shell(*ENDPOINTS[:2], window=8, buffers=8, recipe=RECIPE_2)
    join(shell, OWNER, window=1)
    join(shell, NEXT)
    shell.session.begin(BatchSequence(0, range(10)))
    out = shell.do()
    assert asked(out, OWNER) == keys(0)
    assert asked(out, NEXT) == keys(1, 2, 3)
    out = shell.answer(0, OWNER, session=OWNER + 1)
    assert asked(out, OWNER) == keys(4)


def test_a_batch_waits_for_its_lanes_owner_unless_another_node_would_idle() -> None:
    fields = {"lanes": 5, "samples": 40}
    shell, out = serve(3, buffers=9, recipe=RECIPE_5, **fields)
    preference = prefer(hello(recipe=RECIPE_5), NODES, **fields)
    owned = {key: NODES.index(preference.order(key)[0]) for key in keys(*range(9))}
    wants = {key: link for link in range(3) for key in asked(out, link)}
    for key, link in wants.items():
        assert link == owned[key] or all(
            list(owned.values()).count(other) < 3 for other in range(3) if other == link
        ), "only a node without enough batches of its own takes another one's"
    assert max(list(wants.values()).count(link) for link in range(3)) <= 3, "its even share"
    waiting = [key for key in owned if key not in wants]
    assert all(list(wants.values()).count(owned[key]) == 3 for key in waiting)
    assert keys(0)[0] in wants
    assert len(shell.session.served_endpoints) == 3


def test_an_idle_node_takes_a_batch_of_a_lane_for_which_it_is_the_first_to_stand_in() -> None:
    recipe = msgspec.structs.replace(RECIPE, order_batch_size=20, lanes=30)  # of five batches each
    fields = {"samples": 600, "batches": 150, "lanes": 30}
    preference = prefer(hello(recipe=recipe), NODES, **fields)
    orders = [preference.order(key) for key in keys(*range(0, 150, 5))]
    lane = next(
        lane
        for lane, (order, after) in enumerate(pairwise(orders))
        if order[0] == after[0] and order[1] != after[1]
    )
    owner, second, third = map(NODES.index, orders[lane])
    shell = Shell(*ENDPOINTS, buffers=9, window=8, recipe=recipe)
    for link in range(3):
        window = 8 if link == owner else 1
        join(shell, link, window=window, recipe_fingerprint=recipe.fingerprint(), **fields)
    first = 5 * lane
    shell.session.begin(BatchSequence(0, range(first, 150)))
    out = shell.do()
    assert asked(out, owner) == keys(first, first + 1, first + 2)
    assert asked(out, second) == keys(first + 3)
    assert asked(out, third) == keys(first + 5), "of the next lane"


def test_the_node_processes_of_a_feeder_have_its_lanes_in_turn() -> None:
    shell = Shell(window=8, buffers=8, recipe=RECIPE_5)
    shell.do(EndpointsListed(dict.fromkeys(ENDPOINTS[:2], "rack")))
    for link in (0, 1):
        join(shell, link, lanes=5, recipe_fingerprint=RECIPE_5.fingerprint())
    shell.session.begin(BatchSequence(0, range(10)))
    out, preference = shell.do(), prefer(hello(recipe=RECIPE_5), lanes=5)
    assert [preference.lane(key) % 2 for key in asked(out, 0)] == [0, 0, 0]
    assert [preference.lane(key) % 2 for key in asked(out, 1)] == [1, 1, 1]


def test_the_feeders_of_a_single_lane_and_their_node_processes_have_its_batches_in_turn() -> None:
    names = {f"tcp://{rack}:{port}": rack for rack in ("left", "right") for port in (1, 2)}
    shell = Shell(window=8, buffers=8)
    shell.do(EndpointsListed(names))
    for link, endpoint in enumerate(names):
        shell.connect(link)
        shell.receive(welcome(link + 1, node=endpoint, lanes=1, window=8), link)
    shell.session.begin(BatchSequence(0, range(10)))
    out = shell.do()
    turns = [[index for _, index in asked(out, link)] for link in range(4)]
    assert sorted(turns) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert {*turns[0], *turns[1]} in ({0, 2, 4, 6}, {1, 3, 5, 7}), "the left one's"


def test_a_node_that_few_ranks_share_gets_more_of_each_ones_batches() -> None:
    """Without its Pongs a client takes it for shared by all ranks."""
    recipe = msgspec.structs.replace(RECIPE, lanes=32)
    shell = Shell(*ENDPOINTS[:2], window=16, buffers=16, recipe=recipe)
    fields = {"samples": 1600, "batches": 400, "lanes": 32}
    for link in (0, 1):
        fingerprint = recipe.fingerprint()
        join(shell, link, workers=8, window=16, recipe_fingerprint=fingerprint, **fields)
    shell.session.begin(BatchSequence(0, range(0, 400, 16)))
    out = shell.do()
    assert max(len(asked(out, link)) for link in (0, 1)) <= 2
    for link in (0, 1):
        shell.receive(Pong(session=link + 1, sharers=1), link)
    shell.do()
    assert max(pending(shell, link) for link in (0, 1)) == 8, "its even share"


def test_the_status_of_all_nodes_is_known_when_each_serves_refuses_or_is_unreachable() -> None:
    shell = Shell(*ENDPOINTS)
    assert not shell.session.is_gathered
    join(shell, 0)
    shell.lose(1)
    shell.connect(2)
    assert not shell.session.is_gathered, "the last one has not answered"
    shell.receive(Refused(code="clients", message="too many"), 2)
    assert shell.session.is_gathered


# Nodes that are lost, end or fail


def test_batches_of_a_lost_node_are_requested_from_the_next_until_it_comes_back() -> None:
    shell, _ = serve()
    out = shell.lose(OWNER)
    assert asked(out, NEXT) == keys(0, 1)
    assert shell.session.scheduler.retried == 2
    assert sends(out, OWNER) == []
    join(shell, OWNER, session=9)
    assert shell.session.reconnects == 1
    for index in range(3):
        out = shell.answer(index, NEXT, session=NEXT + 1)
    assert shell.take_keys() == keys(0, 1, 2)
    assert asked(shell.do(), OWNER)[:1] == keys(3), "it gets its lanes again"


@pytest.mark.parametrize("is_next_away", [False, True])
def test_a_batch_that_one_node_cannot_make_is_requested_from_another_now_or_later(
    is_next_away: bool,
) -> None:
    shell, _ = serve()
    if is_next_away:
        shell.lose(NEXT)
    out = fail(shell, 0, OWNER)
    assert released(out, OWNER) == keys(0)
    assert not shell.prefetch.ready
    session = NEXT + 1
    if is_next_away:
        assert f"disk of {NODES[OWNER]}" in shell.session.explain(0.0)
        session = 9
        out = join(shell, NEXT, session=session)
    assert asked(out, NEXT)[:1] == keys(0)
    shell.answer(0, NEXT, session=session)
    assert shell.take_key() == (0, 0)


def test_a_node_that_could_not_make_a_batch_is_asked_again_when_it_is_back() -> None:
    shell, _ = serve()
    shell.lose(NEXT)
    fail(shell, 0, OWNER)
    shell.lose(OWNER)
    assert asked(join(shell, OWNER, session=9), OWNER)[:1] == keys(0)


def test_a_batch_that_no_node_can_make_is_an_error_with_all_reasons() -> None:
    shell, _ = serve()
    fail(shell, 0, OWNER)
    fail(shell, 0, NEXT)
    with pytest.raises(DatasetError) as caught:
        shell.session.take()
    assert str(caught.value) == (
        f"{NAME}: batch 0 of epoch 0 cannot be had: disk of {NODES[OWNER]} (dataset); "
        f"disk of {NODES[NEXT]} (dataset)"
    )


# Nodes that are late or quiet


def wait_for_the_owner() -> Shell:
    """Return a client that waits for the owner's batches, the first three of twelve."""
    shell, out = serve(buffers=12)
    assert asked(out, OWNER) == keys(0, 1, 2)
    assert asked(out, NEXT) == keys(3, 4, 5), "what is due later waits for the owner"
    for index in (3, 4, 5):
        shell.answer(index, NEXT, session=NEXT + 1)
    return shell


def test_late_batches_are_hedged_but_never_many_at_once_and_the_first_answer_counts() -> None:
    shell = wait_for_the_owner()
    assert asked(pass_time(shell, LATE_S - 0.1, OWNER, NEXT), NEXT) == []
    out = pass_time(shell, LATE_S + 3, OWNER, NEXT)
    assert asked(out, NEXT) == keys(0, 1)
    assert asked(out, OWNER) == [], "it is asked already"
    assert shell.session.scheduler.hedged == HEDGES_MAX == 2
    assert released(out, OWNER) == []
    out = shell.answer(0, NEXT, session=NEXT + 1)
    assert released(out, OWNER) == keys(0)
    assert released(out, NEXT) == keys(0)
    assert asked(out, NEXT) == keys(2), "now it is this one's turn"
    before = shell.prefetch.chunks_discarded
    shell.answer(0, OWNER, session=OWNER + 1)
    assert shell.prefetch.chunks_discarded == before + 1, "the slower request was released"
    shell.answer(1, OWNER, session=OWNER + 1)
    shell.answer(2, OWNER, session=OWNER + 1)
    assert shell.take_keys() == keys(0, 1, 2, 3, 4, 5)


def test_a_late_batch_is_hedged_on_one_other_node_only_if_there_is_one() -> None:
    shell, out = serve(3)
    (first,) = (link for link in range(3) if (0, 0) in asked(out, link))
    for link in {0, 1, 2} - {first}:
        shell.answer(asked(out, link)[0][1], link, session=link + 1)
    out = pass_time(shell, 3 * LATE_S, 0, 1, 2)
    assert sum(len(asked(out, link)) for link in range(3)) == 1
    shell, _ = serve(1)
    assert asked(pass_time(shell, 5 * LATE_S, 0), 0) == []
    assert shell.session.scheduler.hedged == 0


def test_all_batches_of_a_quiet_node_are_requested_elsewhere() -> None:
    shell = wait_for_the_owner()
    out = pass_time(shell, QUIET_S - 0.1, NEXT)
    assert asked(out, NEXT) == keys(0, 1), "late ones"
    out = pass_time(shell, QUIET_S, NEXT)
    assert asked(out, NEXT) == keys(2)
    assert shell.session.scheduler.retried == 0, "it may still answer"
    shell.answer(0, OWNER, session=OWNER + 1)
    assert shell.take_key() == (0, 0)


def test_a_late_batch_is_not_requested_from_another_quiet_node() -> None:
    shell = wait_for_the_owner()
    pass_time(shell, QUIET_S + 1.0, OWNER, NEXT)
    hedged = shell.session.scheduler.hedged
    pass_time(shell, 2 * QUIET_S + 2.0)
    assert hedged == shell.session.scheduler.hedged == HEDGES_MAX, "both are quiet now"


def test_a_quiet_node_is_asked_last() -> None:
    shell, _ = serve(buffers=12)
    pass_time(shell, QUIET_S, NEXT)
    shell.session.begin(BatchSequence(1, range(10)))
    out = shell.do()
    assert asked(out, NEXT) == [(1, 0), (1, 1), (1, 2)]
    assert asked(out, OWNER) == [(1, 3), (1, 4), (1, 5)], "of those that are due soon"


def test_an_active_node_that_does_not_answer_gets_one_more_request() -> None:
    shell, _ = serve(1)
    assert asked(pass_time(shell, RETRY_S - 0.1, 0)) == []
    requests = [out for out in sends(pass_time(shell, RETRY_S, 0)) if not isinstance(out, Ping)]
    again = tuple(keys(0, 1, 2))
    assert requests == [Request(session=1, number=2, want=again, release=again)]


def test_a_draining_node_is_not_asked_again() -> None:
    shell, _ = serve(1)
    shell.receive(Draining(session=1))
    sent = sends(pass_time(shell, RETRY_S - 0.1, 0))
    assert {type(message) for message in sent} == {Ping}, "which keep its last batches coming"
    assert asked(pass_time(shell, RETRY_S + 1, 0)) == []


# One node process by two endpoints


def meet_duplicates() -> tuple[Shell, list[Instruction]]:
    """Return a client of which two endpoints are one node, and its last instructions."""
    shell = Shell(*ENDPOINTS[:2])
    join(shell, 0, incarnation=5)
    shell.session.begin(BatchSequence(0, range(10)))
    shell.do()
    return shell, join(shell, 1, node=NODES[0], incarnation=5)


def test_the_same_node_by_another_endpoint_is_declined() -> None:
    shell, out = meet_duplicates()
    assert sends(out, 1) == [Bye(session=2)]
    assert len(shell.session.served_endpoints) == 1
    assert sends(pass_time(shell, 20.0, 0), 1) == []
    assert "it is the same node process as another endpoint" in shell.session.explain(0.0)
    fail(shell, 0, 0)
    with pytest.raises(DatasetError, match="disk of a"):
        shell.session.take()  # the other endpoint could not make it either


@pytest.mark.parametrize("first", ["lost", "unlisted", "left out"])
def test_the_same_node_is_greeted_by_the_other_endpoint_when_the_first_is_gone(first: str) -> None:
    shell, _ = meet_duplicates()
    if first == "lost":
        out = shell.lose(0)
    elif first == "unlisted":
        out = shell.change_list(ENDPOINTS[1])
        assert sends(out, 0) == [Bye(session=1)]
    else:
        shell.answer(0)
        shell.take_keys()
        out = shell.find_incompatibility(ProtocolError("garbage"), 0)
    assert sends(out, 1) == [hello()]
    out = shell.receive(welcome(3, node=NODES[0], incarnation=5), 1)
    assert len(asked(out, 1)) == 2


def test_the_other_endpoint_is_tried_when_a_node_is_silent_on_the_first() -> None:
    """A network can fail silently: then libzmq notices it seconds later."""
    shell, _ = meet_duplicates()
    out = shell.run_until(shell.now_s + SILENCE_S)
    assert sends(out, 0)[-2:] == [Bye(session=1), hello()]
    assert sends(out, 1) == [hello()]
    out = shell.receive(welcome(3, node=NODES[0], incarnation=5), 1)
    assert asked(out, 1) == keys(0, 1)
    out = shell.receive(welcome(4, node=NODES[0], incarnation=5), 0)
    assert sends(out, 0) == [Bye(session=4)], "it speaks again: the other way serves by now"


# Endpoints that are listed and unlisted


def test_the_link_of_an_unlisted_endpoint_is_closed_and_a_later_one_is_another() -> None:
    shell, _ = serve()
    out = shell.change_list(ENDPOINTS[NEXT])
    farewell = [each for each in out if getattr(each, "link", None) == OWNER]
    assert sends(farewell, OWNER) == [Bye(session=OWNER + 1)]
    assert farewell[-1] == HangUp(OWNER)
    assert asked(out, NEXT) == keys(0, 1)
    assert shell.do(Disconnected(OWNER), MessageReceived(OWNER, welcome(9))) == []
    assert shell.answer(0, OWNER, session=OWNER + 1) == []
    assert not shell.prefetch.ready
    assert shell.change_list(*ENDPOINTS[:2]) == [Dial(2, ENDPOINTS[OWNER])]


def test_the_state_of_every_endpoint_is_explained() -> None:
    shell = Shell(*ENDPOINTS[:2])
    shell.lose(0)
    shell.connect(1)
    text = shell.session.explain(0.0)
    assert f"{ENDPOINTS[0]}: nothing answers there (1 attempts to connect failed)" in text
    assert f"; {ENDPOINTS[1]}: it accepted the connection but does not answer" in text


# When a batch is late, by the latencies so far


@pytest.mark.parametrize(
    ("latencies_s", "least_s", "most_s"),
    [
        ([], 2.0, 2.0),
        ([0.5] * 15, 2.0, 2.0),
        ([0.5] * 16, 0.75, 0.75),
        ([9.0] + [0.2] * 127, 0.2, 0.31),  # it follows two slow answers in a hundred, but not one
        ([9.0] * 2 + [0.2] * 126, 13.5, 13.5),
        ([0.0001] * 50, 0.1, 0.1),
        ([5.0] * 128 + [0.2] * 128, 0.2, 0.31),  # old latencies are forgotten
    ],
)
def test_a_batch_is_late_after_what_nearly_all_recent_ones_took(
    latencies_s: list[float], least_s: float, most_s: float
) -> None:
    assert least_s <= learn(latencies_s) <= most_s


def learn(latencies_s: list[float]) -> float:
    scheduler = make_scheduler()
    scheduler.latencies_s.extend(latencies_s)
    scheduler.follow({})
    return scheduler.late_after_s
