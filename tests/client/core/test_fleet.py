"""The client's session with nodes that die, hang, lose and repeat: each batch once, in order.

Nodes, network and clock around a real ``ClientSession`` are simulated: ``run`` goes from one event
to the next. A node makes batches after a while, in chunks or in slots that it reuses as soon as it
may; the network delays, repeats and loses nodes' messages, and loses those in flight when a
connection is cut, as TCP does. All rows that the client stores or reads are checked against the
batch that they should be of.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.client.core import events
from feeder.client.core.links import Job
from feeder.client.core.prefetch import Batch, BatchSequence
from feeder.client.core.session import ClientSession
from feeder.plan.epoch import rank_indices
from feeder.plan.recipe import Recipe
from feeder.wire.messages import (
    BatchKey,
    Bye,
    Chunk,
    ClientMessage,
    Draining,
    Failed,
    Hello,
    Lent,
    NodeMessage,
    Ping,
    Pong,
    Refused,
    Request,
)
from tests.support.client_shell import IDLE_TURNS_MAX, hello, welcome

BATCH, SIDE, CHUNK = 4, 8, 2
SIZES = [CHUNK * SIDE * SIDE * 3, CHUNK * 8, CHUNK * 8]
RECIPE = Recipe.for_split("val", batch_size=BATCH, image_size=SIDE, lanes=3)
BATCHES = 23
SAMPLES = BATCH * BATCHES - 1  # the last batch is short
LATENCY_S = 0.002


def valid(key: BatchKey) -> int:
    return max(0, min(BATCH, SAMPLES - key[1] * BATCH))


@dataclass(eq=False)
class Pages:
    """Stands in for a lent slot; ``holds`` is the batch that the node has in it now."""

    holds: tuple[BatchKey, int] | None = None


@dataclass(eq=False)
class NodeSession:
    """What a node knows of a client."""

    number: int
    slots: list[Pages]
    is_mapped: bool = False
    wanted: dict[BatchKey, tuple[int, Pages | None]] = field(default_factory=dict)


@dataclass(eq=False)
class Node:
    """A node process: up, down or stopped; another one after each restart."""

    name: str
    lends: bool
    batch_s: float
    window: int
    incarnation: int
    is_up: bool = True
    is_draining: bool = False
    stopped_until_s: float = 0.0
    failing: float = 0.0  # how often its disk cannot be read
    free_at_s: float = 0.0  # when its worker has made all batches requested so far
    sessions: dict[int, NodeSession] = field(default_factory=dict)  # by link


@dataclass
class Line:
    """A link as the network sees it."""

    node: Node
    is_connected: bool = False
    is_closed: bool = False
    connection: int = 0
    sent_until_s: float = 0.0  # the client's messages arrive in order

    def disconnect(self, number: int) -> None:
        self.is_connected = False
        self.connection += 1
        self.node.sessions.pop(number, None)


class Fleet:
    """The whole simulation; ``taken`` are the batches that the consumer got.

    The client is the last of ``ranks``, so it is the one with padding.
    """

    def __init__(
        self, chance: random.Random, nodes: list[Node], *, buffers: int = 4, ranks: int = 1
    ) -> None:
        self.chance = chance
        self.now_s = 0.0
        self.nodes = {f"ipc:///{node.name}": node for node in nodes}
        self.lines: dict[int, Line] = {}
        self.loss = self.repetition = 0.0
        self.reading_s: tuple[float, ...] = (0.0, 0.01, 0.3)  # how long the consumer holds a batch
        self.indices = rank_indices(BATCHES, ranks - 1, ranks, RECIPE.last_batch)
        job = Job(name="fleet", hello=hello(buffers, RECIPE))
        self.session = ClientSession(job, buffers=buffers)
        self.expected = iter(())
        self.taken = 0
        self.has_begun = self.is_paused = False
        self._numbers = itertools.count(1)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._rows: dict[int, dict[int, BatchKey]] = {}  # by buffer: the batch of its rows
        self._reading: list[tuple[Batch, object]] = []
        self.set_endpoints(tuple(self.nodes))

    def set_endpoints(self, endpoints: tuple[str, ...]) -> None:
        self.give(events.EndpointsListed(dict.fromkeys(endpoints, "")))

    def begin(self, epoch: int) -> None:
        self.session.begin(BatchSequence(epoch, self.indices))
        self.has_begun = True
        self.expected = ((e, i) for e in itertools.count(epoch) for i in self.indices)

    def run(self, until_s: float) -> None:
        idle = 0  # turns of the clock at one instant without anything to do
        while True:
            spare = int(self.is_paused or bool(self._reading))  # the consumer does not wait
            if self.session.is_clock_due(spare=spare) or self.session.due_s <= self.now_s:
                idle = 0 if self.give(events.ClockAdvanced()) else idle + 1
                assert idle < IDLE_TURNS_MAX, "a busy loop"
            self._consume()
            next_s = min([self.session.due_s, *(at_s for at_s, *_ in self._agenda[:1])])
            if next_s > until_s:
                self.now_s = max(self.now_s, until_s)
                return
            idle = 0 if next_s > self.now_s else idle
            self.now_s = max(self.now_s, next_s)
            while self._agenda and self._agenda[0][0] <= self.now_s:
                heapq.heappop(self._agenda)[2]()

    def at(self, at_s: float, call: Callable[[], None], turn: int | None = None) -> None:
        """Schedule a call at a time, after calls with an earlier turn; by default the last."""
        heapq.heappush(self._agenda, (at_s, next(self._numbers) if turn is None else turn, call))

    # --- Faults of nodes and network ----------------------------------------------------------

    def kill(self, node: Node, away_s: float) -> None:
        """End a node process; another one comes up in its place."""

        def restart() -> None:
            node.is_up, node.is_draining = True, False
            node.incarnation = next(self._numbers)
            node.free_at_s = self.now_s

        node.is_up = False
        node.sessions.clear()
        for number, line in self.lines.items():
            if line.node is node:
                self.cut(number)
        self.at(self.now_s + away_s, restart)

    def stop(self, node: Node, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later: messages wait meanwhile."""
        node.stopped_until_s = max(node.stopped_until_s, self.now_s + for_s)

    def drain(self, node: Node, for_s: float) -> None:
        """SIGTERM, and another daemon in its place."""
        node.is_draining = True
        for number, session in node.sessions.items():
            self._say(number, Draining(session=session.number))
        self.at(self.now_s + for_s, partial(self.kill, node, 0.5))

    def cut(self, number: int) -> None:
        """Break a connection; the client dials again."""
        line = self.lines[number]
        if line.is_connected:
            line.disconnect(number)
            self.give(events.Disconnected(number))
            self._dial_soon(number)

    # --- The client's shell -------------------------------------------------------------------

    def give(self, event: events.Event) -> Sequence[events.Instruction]:
        """Pass an event to the client and execute what follows."""
        instructions = self.session.handle(event, self.now_s)
        for instruction in instructions:
            match instruction:
                case events.Dial(number, endpoint):
                    self.lines[number] = Line(self.nodes[endpoint])
                    self._dial_soon(number)
                case events.HangUp(number):
                    self.lines[number].is_closed = True
                    self.lines[number].disconnect(number)
                case events.Send(number, message):
                    self._carry_to_node(number, message)
                case events.ClaimSlots(number, session):
                    self._answer_claim(number, session)
                case events.Store(number, chunk, buffer):
                    self._rows.setdefault(buffer, {})[chunk.first] = chunk.epoch, chunk.index
                    self.give(events.ChunkStored(number, chunk))
        return instructions

    def _consume(self) -> None:
        while self.has_begun and not self.is_paused and (batch := self.session.take()) is not None:
            assert batch.key == next(self.expected), "the sequence, each once, in order"
            assert batch.valid == valid(batch.key)
            self.taken += 1
            self._check(batch)
            held = batch.lent.holds if isinstance(batch.lent, Pages) else None
            self._reading.append((batch, held))
            self.at(self.now_s + self.chance.choice(self.reading_s), self._finish_reading)

    def _check(self, batch: Batch) -> None:
        if isinstance(batch.lent, Pages):
            assert batch.lent.holds is not None
            assert batch.lent.holds[0] == batch.key
        elif batch.valid:
            rows = self._rows[batch.buffer]
            assert [rows[first] for first in range(0, BATCH, CHUNK)] == [batch.key] * 2

    def _finish_reading(self) -> None:
        batch, held = self._reading.pop(0)
        self._check(batch)
        if isinstance(batch.lent, Pages):
            assert batch.lent.holds == held, "no node has written there meanwhile"
        self.session.prefetch.return_buffer(batch.buffer)

    # --- The network --------------------------------------------------------------------------

    def _dial_soon(self, number: int) -> None:
        def dial() -> None:
            if line.is_closed or line.is_connected:
                return
            if line.node.is_up:
                line.is_connected = True
                line.connection += 1
                self.give(events.Connected(number))
            else:
                self.at(self.now_s + 0.1, dial)

        line = self.lines[number]
        self.at(self.now_s + 0.1, dial)

    def _carry_to_node(self, number: int, message: ClientMessage) -> None:
        line = self.lines[number]
        turn, connection = next(self._numbers), line.connection

        def reach() -> None:
            if line.connection != connection:
                return
            if line.node.stopped_until_s > self.now_s:  # it may be stopped for longer then
                self.at(line.node.stopped_until_s, reach, turn)
                return
            self._serve(number, line.node, message)

        if line.is_connected:
            line.sent_until_s = max(self.now_s + LATENCY_S, line.sent_until_s)
            self.at(line.sent_until_s, reach, turn)

    def _say(self, number: int, message: NodeMessage) -> None:
        """Carry a node's message: late, twice or not at all, and in any order."""
        connection = self.lines[number].connection

        def arrive() -> None:
            if self.lines[number].connection == connection:
                sizes = SIZES if isinstance(message, Chunk) else ()
                self.give(events.MessageReceived(number, message, sizes))

        if self.chance.random() >= self.loss:
            for _ in range(1 + (self.chance.random() < self.repetition)):
                self.at(self.now_s + LATENCY_S * (1 + self.chance.random() * 3), arrive)

    # --- The nodes ----------------------------------------------------------------------------

    def _serve(self, number: int, node: Node, message: ClientMessage) -> None:
        session = node.sessions.get(number)
        match message:
            case Hello() if node.is_draining:
                self._say(number, Refused(code="draining", message="about to end"))
            case Hello():
                self._welcome(number, node)
            case Ping() | Request() if session is None or session.number != message.session:
                refusal = Refused(code="unknown-session", message="none", session=message.session)
                self._say(number, refusal)
            case Ping():
                self._say(number, Pong(session=message.session))
            case Request() if session is not None:
                self._take_request(number, node, session, message)
            case Bye() if session is not None and session.number == message.session:
                del node.sessions[number]
            case _:
                pass

    def _welcome(self, number: int, node: Node) -> None:
        slots = [Pages() for _ in range(node.window)]
        session = node.sessions[number] = NodeSession(next(self._numbers), slots)
        answer = welcome(
            session.number,
            node=node.name,
            recipe_fingerprint=RECIPE.fingerprint(),
            samples=SAMPLES,
            batches=BATCHES,
            shards=6,
            lanes=RECIPE.lanes,
            window=node.window,
            chunk_images=CHUNK,
            incarnation=node.incarnation,
            siblings=((),),
        )
        self._say(number, answer)

    def _answer_claim(self, number: int, session: int) -> None:
        node = self.lines[number].node
        known = node.sessions.get(number)
        if known is not None and known.number == session and node.lends and not known.wanted:
            known.is_mapped = True
            slots: list[object] = [*known.slots]
            self.give(events.ClaimAnswered(number, session, slots))  # type: ignore[arg-type]
        else:
            self.give(events.ClaimAnswered(number, session, refusal="not here"))

    def _take_request(
        self, number: int, node: Node, session: NodeSession, request: Request
    ) -> None:
        for key in request.release:
            _, pages = session.wanted.pop(key, (0, None))  # none where the want was refused
            if pages is not None:
                pages.holds = None
        for key in request.want:
            assert valid(key), "padding is not requested"
            assert key not in session.wanted, "a batch is wanted once"
            assert len(session.wanted) < node.window, "no more than the node granted"
            if node.is_draining:
                refusal = Refused(code="draining", message="no more", session=session.number)
                self._say(number, refusal)
                return
            session.wanted[key] = request.number, None
            make_s = node.batch_s * (0.5 + self.chance.random())
            node.free_at_s = max(node.free_at_s, self.now_s) + make_s
            finish = partial(self._finish, number, session, key, request.number)
            self.at(node.free_at_s, finish)

    def _finish(self, number: int, session: NodeSession, key: BatchKey, request: int) -> None:
        """Deliver a batch, unless it was released or the session is over."""
        node = self.lines[number].node
        if node.stopped_until_s > self.now_s:
            finish = partial(self._finish, number, session, key, request)
            self.at(node.stopped_until_s, finish)
            return
        is_wanted = session.wanted.get(key, (0, None))[0] == request
        if not is_wanted or node.sessions.get(number) is not session:
            return
        batch = {"session": session.number, "epoch": key[0], "index": key[1]}
        if self.chance.random() < node.failing:
            self._say(number, Failed(**batch, code="dataset", message="its disk"))
        elif session.is_mapped:
            pages = self.chance.choice([slot for slot in session.slots if slot.holds is None])
            pages.holds = key, request
            session.wanted[key] = request, pages
            slot = session.slots.index(pages)
            self._say(number, Lent(**batch, request=request, slot=slot, valid=valid(key)))
        else:
            for first in range(0, BATCH, CHUNK):
                chunk = Chunk(**batch, first=first, images=CHUNK, valid=valid(key))
                self._say(number, chunk)


_MISHAPS = "kill stop drain cut fail lose heal jump pause list begin calm"


def make_fleet(
    seed: int, *, nodes: int = 2, lends: str = "", buffers: int = 4, ranks: int = 1
) -> Fleet:
    """A fleet whose client fetches epoch 0; ``lends`` has a y for each node that lends."""
    chance = random.Random(seed)
    windows = [buffers if seed < 10 else chance.randint(1, buffers) for _ in range(nodes)]
    members = [
        Node(f"node-{n}", lends[n : n + 1] == "y", 0.05, windows[n], incarnation=1 + n)
        for n in range(nodes)
    ]
    fleet = Fleet(chance, members, buffers=buffers, ranks=ranks)
    fleet.run(0.5)
    fleet.begin(0)
    return fleet


def test_all_nodes_have_work_and_each_batch_comes_once() -> None:
    fleet = make_fleet(1, nodes=3, buffers=6)
    fleet.reading_s = (0.0,)
    fleet.run(10.5)
    assert fleet.taken > 0.85 * 3 * 10.0 / 0.05
    assert fleet.session.scheduler.retried == 0
    assert len(fleet.session.served_endpoints) == 3


@pytest.mark.parametrize("lends", ["yy", "", "y"])
def test_a_node_that_dies_delays_batches_only_briefly(lends: str) -> None:
    fleet = make_fleet(2, lends=lends)
    fleet.run(5.0)
    before = fleet.taken
    fleet.kill(next(iter(fleet.nodes.values())), away_s=60.0)
    fleet.run(6.0)
    assert fleet.taken > before + 10
    assert len(fleet.session.served_endpoints) == 1
    fleet.run(70.0)
    assert len(fleet.session.served_endpoints) == 2


@pytest.mark.parametrize("lends", ["yy", ""])
@pytest.mark.parametrize("seed", range(10, 16))
def test_the_next_batch_finds_room_even_if_all_windows_are_full(lends: str, seed: int) -> None:
    fleet = make_fleet(seed, lends=lends)  # small windows, which are soon full
    slow = next(iter(fleet.nodes.values()))
    slow.failing, slow.batch_s = 1.0, 0.4  # the other one has finished later batches long before
    fleet.run(15.0)
    assert fleet.taken > 50


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(1, 3),
    lends=st.text("yn", min_size=3, max_size=3),
    buffers=st.integers(1, 9),
    ranks=st.integers(1, 5),
)
def test_the_sequence_is_delivered_under_random_faults(
    seed: int, nodes: int, lends: str, buffers: int, ranks: int
) -> None:
    fleet = make_fleet(seed, nodes=nodes, lends=lends, buffers=buffers, ranks=ranks)
    chance = fleet.chance
    all_nodes = tuple(fleet.nodes)
    for _ in range(25):
        node = chance.choice(list(fleet.nodes.values()))
        match chance.choice(_MISHAPS.split()):
            case "kill" if node.is_up:
                fleet.kill(node, away_s=chance.uniform(0.1, 5.0))
            case "stop":
                fleet.stop(node, for_s=chance.uniform(0.1, 8.0))
            case "drain" if node.is_up and not node.is_draining:
                fleet.drain(node, for_s=chance.uniform(0.0, 4.0))
            case "fail":
                first = fleet.nodes[all_nodes[0]]
                first.failing = chance.choice((0.0, 0.5, 1.0)) if nodes > 1 else 0.0
            case "cut":
                fleet.cut(chance.choice(list(fleet.lines)))
            case "lose":
                fleet.loss, fleet.repetition = chance.choice(((0.1, 0.1), (0.5, 0.0), (0.0, 0.5)))
            case "heal":
                fleet.loss = fleet.repetition = 0.0
            case "jump":  # the host was suspended
                fleet.now_s += chance.uniform(0.0, 100.0)
            case "pause":
                fleet.is_paused = not fleet.is_paused
            case "list":
                listed = chance.sample(all_nodes, chance.randint(1, nodes))
                if listed == [all_nodes[0]]:  # its disk may be bad
                    listed = [all_nodes[-1]]
                fleet.set_endpoints(tuple(listed))
            case "begin" if chance.random() < 0.3:
                fleet.begin(chance.randrange(3))
            case _:
                pass
        fleet.run(fleet.now_s + chance.uniform(0.05, 2.0))
    fleet.loss = fleet.repetition = 0.0
    fleet.is_paused = False
    fleet.nodes[all_nodes[0]].failing = 0.0
    fleet.set_endpoints(all_nodes)
    for node in fleet.nodes.values():
        node.batch_s = 0.2  # a minute of batches at full speed would take most of the test's time
    fleet.run(fleet.now_s + 60.0)
    before = fleet.taken
    fleet.run(fleet.now_s + 20.0)
    assert fleet.session.error is None
    assert fleet.taken > before + 50
    assert len(fleet.session.served_endpoints) == nodes
