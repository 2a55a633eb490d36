"""Simulated nodes, network and clock around a real ``ClientSession``.

Time is virtual: ``run`` goes from one event to the next. A node makes batches after a while, in
chunks or in slots that it reuses as soon as it may; the network delays, repeats and loses nodes'
messages, and loses those in flight when a connection is cut, as TCP does. All rows that the client
stores or reads are checked against the batch that they should be of.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from feeder.client.core.events import (
    ChunkStored,
    ClaimAnswered,
    ClaimSlots,
    ClockAdvanced,
    Connected,
    Dial,
    Disconnected,
    EndpointsListed,
    Event,
    HangUp,
    Instruction,
    Log,
    MessageReceived,
    Send,
    Store,
)
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
    Welcome,
)

BATCH, SIDE, CHUNK = 4, 8, 2
SIZES = [CHUNK * SIDE * SIDE * 3, CHUNK * 8, CHUNK * 8]
RECIPE = Recipe.for_split("train", batch_size=BATCH, image_size=SIDE, lanes=3)
BATCHES = 23
LATENCY_S = 0.002


class Pages:
    """Stands in for a lent slot; ``holds`` is the batch that the node has in it now."""

    def __init__(self) -> None:
        self.holds: tuple[BatchKey, int] | None = None


@dataclass
class NodeSession:
    """What a node knows of a client."""

    number: int
    window: int
    slots: list[Pages]
    is_mapped: bool = False
    wanted: dict[BatchKey, tuple[int, Pages | None]] = field(default_factory=dict)


class Node:
    """A node process: up, down or stopped; another one after each restart."""

    def __init__(self, name: str, *, lends: bool, batch_s: float, window: int) -> None:
        self.name = name
        self.lends = lends
        self.batch_s = batch_s
        self.window = window
        self.is_up = True
        self.is_draining = False
        self.stopped_until_s = 0.0
        self.incarnation = 0
        self.failing = 0.0  # how often its disk cannot be read
        self.free_at_s = 0.0  # when its worker has made all batches requested so far
        self.sessions: dict[int, NodeSession] = {}  # by link


@dataclass
class Line:
    """A link as the network sees it."""

    node: Node
    is_connected: bool = False
    is_closed: bool = False
    connection: int = 0
    sent_until_s: float = 0.0  # the client's messages arrive in order


class Fleet:
    """The whole simulation; ``taken`` are the batches that the consumer got."""

    def __init__(self, chance: random.Random, nodes: list[Node], *, buffers: int = 4) -> None:
        self.chance = chance
        self.now_s = 0.0
        self.nodes = {f"ipc:///{node.name}": node for node in nodes}
        self.lines: dict[int, Line] = {}
        self.loss = self.repetition = 0.0
        self.reading_s: tuple[float, ...] = (0.0, 0.01, 0.3)  # how long the consumer holds a batch
        hello = Hello(dataset="d", recipe=RECIPE, seed=7, window=buffers, client="me")
        self.session = ClientSession(Job(name="fleet", hello=hello), buffers=buffers)
        self.prefetch = self.session.prefetch
        self.logged: list[Log] = []
        self.expected = iter(())
        self.taken = 0
        self.has_begun = self.is_paused = False
        self._numbers = itertools.count(1)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._rows: dict[int, dict[int, BatchKey]] = {}  # by buffer: the batch of its rows
        self._reading: list[tuple[Batch, object]] = []
        self.set_endpoints(tuple(self.nodes))

    def set_endpoints(self, endpoints: tuple[str, ...]) -> None:
        self.give(EndpointsListed(dict.fromkeys(endpoints, "")))

    def begin(self, epoch: int) -> None:
        self.session.begin(BatchSequence(epoch, range(BATCHES)))
        self.has_begun = True
        indices = rank_indices(BATCHES, 0, 1, RECIPE.last_batch)
        self.expected = ((e, i) for e in itertools.count(epoch) for i in indices)

    def run(self, until_s: float) -> None:
        while True:
            spare = int(self.is_paused or bool(self._reading))  # the consumer does not wait
            if self.session.is_clock_due(spare=spare) or self.session.due_s <= self.now_s:
                self.give(ClockAdvanced())
            self._consume()
            due_s = self.session.due_s
            next_s = min(due_s, self._agenda[0][0] if self._agenda else float("inf"))
            if next_s > until_s:
                self.now_s = max(self.now_s, until_s)
                return
            self.now_s = max(self.now_s, next_s)
            while self._agenda and self._agenda[0][0] <= self.now_s:
                heapq.heappop(self._agenda)[2]()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, call)

    def at(self, at_s: float, call: Callable[[], None], turn: int | None = None) -> None:
        """Schedule a call at a time, after calls with an earlier turn; by default the last."""
        heapq.heappush(self._agenda, (at_s, next(self._numbers) if turn is None else turn, call))

    # --- Faults of nodes and network ----------------------------------------------------------

    def kill(self, node: Node, away_s: float) -> None:
        """End a node process; another one comes up in its place."""
        node.is_up = False
        node.sessions.clear()
        for number, line in self.lines.items():
            if line.node is node:
                self.cut(number)
        self.later(away_s, partial(self._restart, node))

    def _restart(self, node: Node) -> None:
        node.is_up, node.is_draining = True, False
        node.incarnation = next(self._numbers)
        node.free_at_s = self.now_s

    def stop(self, node: Node, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later: messages wait meanwhile."""
        node.stopped_until_s = max(node.stopped_until_s, self.now_s + for_s)

    def drain(self, node: Node, for_s: float) -> None:
        """SIGTERM, and another daemon in its place."""
        node.is_draining = True
        for number, session in node.sessions.items():
            self._say(number, Draining(session=session.number))
        self.later(for_s, partial(self.kill, node, 0.5))

    def cut(self, number: int) -> None:
        """Break a connection; the client dials again."""
        line = self.lines[number]
        if line.is_connected:
            line.is_connected = False
            line.connection += 1
            line.node.sessions.pop(number, None)
            self.give(Disconnected(number))
            self._dial_soon(number, line)

    # --- The client's shell -------------------------------------------------------------------

    def give(self, event: Event) -> None:
        """Pass an event to the client and execute what follows."""
        for instruction in self.session.handle(event, self.now_s):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Dial(number, endpoint):
                line = self.lines[number] = Line(self.nodes[endpoint])
                self._dial_soon(number, line)
            case HangUp(number):
                line = self.lines[number]
                line.is_closed, line.is_connected = True, False
                line.connection += 1
                line.node.sessions.pop(number, None)
            case Send(number, message):
                self._carry_to_node(number, message)
            case ClaimSlots(number, session):
                self._answer_claim(number, session)
            case Store(number, chunk, buffer):
                self._rows.setdefault(buffer, {})[chunk.first] = chunk.epoch, chunk.index
                self.give(ChunkStored(number, chunk))
            case Log():
                self.logged.append(instruction)

    def _consume(self) -> None:
        while self.has_begun and not self.is_paused and (batch := self.session.take()) is not None:
            assert batch.key == next(self.expected), "the sequence, each once, in order"
            self.taken += 1
            self._check(batch)
            held = batch.lent.holds if isinstance(batch.lent, Pages) else None
            self._reading.append((batch, held))
            self.later(self.chance.choice(self.reading_s), self._finish_reading)

    def _check(self, batch: Batch) -> None:
        if isinstance(batch.lent, Pages):
            assert batch.lent.holds is not None
            assert batch.lent.holds[0] == batch.key
        else:
            rows = self._rows[batch.buffer]
            assert {first: rows[first] for first in range(0, BATCH, CHUNK)} == dict.fromkeys(
                range(0, BATCH, CHUNK), batch.key
            )

    def _finish_reading(self) -> None:
        batch, held = self._reading.pop(0)
        self._check(batch)
        if isinstance(batch.lent, Pages):
            assert batch.lent.holds == held, "no node has written there meanwhile"
        self.session.prefetch.return_buffer(batch.buffer)

    # --- The network --------------------------------------------------------------------------

    def _dial_soon(self, number: int, line: Line) -> None:
        if not line.is_closed:
            self.later(0.1, partial(self._dial, number, line))

    def _dial(self, number: int, line: Line) -> None:
        if line.is_closed or line.is_connected:
            return
        if line.node.is_up:
            line.is_connected = True
            line.connection += 1
            self.give(Connected(number))
        else:
            self._dial_soon(number, line)

    def _carry_to_node(self, number: int, message: ClientMessage) -> None:
        line = self.lines[number]
        if line.is_connected:
            at_s = max(self.now_s + LATENCY_S, line.sent_until_s)
            line.sent_until_s = at_s
            turn = next(self._numbers)
            self.at(at_s, partial(self._reach, number, line.connection, turn, message), turn)

    def _reach(self, number: int, connection: int, turn: int, message: ClientMessage) -> None:
        line = self.lines[number]
        if line.connection != connection:
            return
        if line.node.stopped_until_s > self.now_s:  # it may be stopped for longer then: see turn
            call = partial(self._reach, number, connection, turn, message)
            self.at(line.node.stopped_until_s, call, turn)
            return
        self._serve(number, line.node, message)

    def _say(self, number: int, message: NodeMessage) -> None:
        """Carry a node's message: late, twice or not at all, and in any order."""
        if self.chance.random() < self.loss:
            return
        for _ in range(1 + (self.chance.random() < self.repetition)):
            connection = self.lines[number].connection
            delay_s = LATENCY_S * (1 + self.chance.random() * 3)
            self.later(delay_s, partial(self._arrive, number, connection, message))

    def _arrive(self, number: int, connection: int, message: NodeMessage) -> None:
        if self.lines[number].connection != connection:
            return
        sizes = SIZES if isinstance(message, Chunk) else ()
        self.give(MessageReceived(number, message, sizes))

    # --- The nodes ----------------------------------------------------------------------------

    def _serve(self, number: int, node: Node, message: ClientMessage) -> None:
        session = node.sessions.get(number)
        match message:
            case Hello():
                self._welcome(number, node)
            case Ping() | Request() if session is None or session.number != message.session:
                text = "no such session"
                self._say(
                    number, Refused(code="unknown-session", message=text, session=message.session)
                )
            case Ping():
                self._say(number, Pong(session=message.session))
            case Request() if session is not None:
                self._take_request(number, node, session, message)
            case Bye() if session is not None and session.number == message.session:
                del node.sessions[number]
            case _:
                pass

    def _welcome(self, number: int, node: Node) -> None:
        if node.is_draining:
            self._say(number, Refused(code="draining", message="about to end"))
            return
        slots = [Pages() for _ in range(node.window)]
        session = NodeSession(next(self._numbers), node.window, slots)
        node.sessions[number] = session
        self._say(
            number,
            Welcome(
                session=session.number,
                dataset="d",
                content="f",
                recipe_fingerprint=RECIPE.fingerprint(),
                classes=("a",),
                samples=BATCH * BATCHES,
                batches=BATCHES,
                shards=6,
                lanes=RECIPE.lanes,
                window=node.window,
                chunk_images=CHUNK,
                node=node.name,
                number=0,
                siblings=((),),
                incarnation=node.incarnation,
                self_test="5" * 32,
                feeder_version="0.1",
                libraries={},
            ),
        )

    def _answer_claim(self, number: int, session: int) -> None:
        node = self.lines[number].node
        known = node.sessions.get(number)
        if known is not None and known.number == session and node.lends and not known.wanted:
            known.is_mapped = True
            slots: list[object] = [*known.slots]
            self.give(ClaimAnswered(number, session, slots))  # type: ignore[arg-type]
        else:
            self.give(ClaimAnswered(number, session, refusal="not here"))

    def _take_request(
        self, number: int, node: Node, session: NodeSession, request: Request
    ) -> None:
        for key in request.release:
            _, pages = session.wanted.pop(key, (0, None))  # none where the want was refused
            if pages is not None:
                pages.holds = None
        for key in request.want:
            assert key not in session.wanted, "a batch is wanted once"
            assert len(session.wanted) < session.window, "no more than the node granted"
            if node.is_draining:
                self._say(
                    number,
                    Refused(code="draining", message="no more", session=session.number),
                )
                return
            session.wanted[key] = request.number, None
            node.free_at_s = max(node.free_at_s, self.now_s) + node.batch_s * (
                0.5 + self.chance.random()
            )
            incarnation = node.incarnation
            self.later(
                node.free_at_s - self.now_s,
                partial(self._finish, number, node, incarnation, session, key, request),
            )

    def _finish(
        self,
        number: int,
        node: Node,
        incarnation: int,
        session: NodeSession,
        key: BatchKey,
        request: Request,
    ) -> None:
        if node.stopped_until_s > self.now_s:
            self.later(
                node.stopped_until_s - self.now_s,
                partial(self._finish, number, node, incarnation, session, key, request),
            )
            return
        is_wanted = session.wanted.get(key, (None, None))[0] == request.number
        if node.incarnation != incarnation or node.sessions.get(number) is not session:
            return
        if not is_wanted or not node.is_up:
            return
        epoch, index = key
        if self.chance.random() < node.failing:
            message = "its disk"
            failed = Failed(
                session=session.number, epoch=epoch, index=index, code="dataset", message=message
            )
            self._say(number, failed)
            return
        if session.is_mapped:
            pages = self.chance.choice([slot for slot in session.slots if slot.holds is None])
            pages.holds = key, request.number
            session.wanted[key] = request.number, pages
            self._say(
                number,
                Lent(
                    session=session.number,
                    request=request.number,
                    epoch=epoch,
                    index=index,
                    slot=session.slots.index(pages),
                    valid=BATCH,
                ),
            )
            return
        for first in range(0, BATCH, CHUNK):
            self._say(
                number,
                Chunk(
                    session=session.number,
                    epoch=epoch,
                    index=index,
                    first=first,
                    images=CHUNK,
                    valid=BATCH,
                ),
            )
