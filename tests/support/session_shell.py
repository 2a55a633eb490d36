"""A simulated node process around the session state machine; it checks every instruction."""

import copy
import dataclasses
import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

from feeder.metrics.fields import add
from feeder.metrics.hangs import KernelState, ProcessLook
from feeder.metrics.records import NodeRecord
from feeder.plan.epoch import ShardLayout
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.plan.recipe import Recipe
from feeder.session import events
from feeder.session.admission import HelloReceived, ServedDataset, SessionLimits, Usage
from feeder.session.jobs import Jobs
from feeder.session.state import Session
from feeder.session.table import SessionTable
from feeder.session.worker_watch import CHUNK_DEADLINE_S, DEADLINE_MIN_S, SILENT_S
from feeder.wire.chunk_work import Fill, Filled, FillFailed
from feeder.wire.messages import (
    Bye,
    Chunk,
    Failed,
    Hello,
    Lent,
    NodeIdentity,
    NodeMessage,
    Ping,
    Refused,
    Request,
    Welcome,
)
from feeder.wire.slot_layout import SlotLayout

Key = tuple[int, int]
SAMPLES = 101
BATCH = 7
CHUNK = 3
ROWS = frozenset(range(BATCH))
IDENTITY = NodeIdentity(
    node="host/1 ipc:///n.1",
    number=1,
    incarnation=77,
    siblings=(("ipc:///n",), ("ipc:///n.1",)),
    feeder_version="0",
    self_test="5" * 32,
    libraries={},
)
_ROUNDING_S = 1e-6


def recipe(**fields: object) -> Recipe:
    return Recipe.for_split("train", **({"batch_size": BATCH, "image_size": 8} | fields))  # type: ignore[arg-type]


def make_session(
    number: int,
    account: str,
    job: str = "",
    *,
    window: int = 2,
    client: str = "c",
    jobs: Jobs | None = None,
    **fields: object,
) -> Session:
    """Return a session that nobody has opened yet."""
    made = recipe(**fields)
    hello = Hello(dataset="d", recipe=made, seed=1, window=window, client=client, job=job)
    return Session(
        HelloReceived(number, b"%d" % number, hello, 1 << 40, account),
        made.plan_epoch(ShardLayout(samples=101, shards=5), seed=1, epoch=0),
        SlotLayout.of_recipe(made, INDEX_LABELS, slots=window),
        [CHUNK],
        (jobs or Jobs({})).join((account, job)),
        0.0,
    )


SLOT_BYTES = SlotLayout(slots=1, batch_size=BATCH, image_size=8).slot_bytes


def limits(**fields: float) -> SessionLimits:
    """Return small limits, which tests reach."""
    values: dict[str, object] = {
        "sessions_max": 3,
        "window_max": 4,
        "chunk_images": CHUNK,
        "slots_bytes": 9 * SLOT_BYTES,
        "lease_s": 10.0,
    }
    return SessionLimits(**(values | fields))  # type: ignore[arg-type]


@dataclass(eq=False)
class Wanted:
    """A client's view of a batch that it has requested."""

    filled: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    failed: bool = False


@dataclass
class ClientView:
    """A client's view of its session."""

    session: int
    window: int
    batches: int
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    has_requested: bool = False


class Shell:
    """Carries out instructions as a node process would, at the test's pace, and checks them."""

    def __init__(
        self,
        table_limits: SessionLimits | None = None,
        datasets: tuple[str, ...] = ("d",),
        labels: LabelSpec = INDEX_LABELS,
        cached: tuple[str, ...] = (),
    ) -> None:
        self.limits = table_limits or limits()
        self.record = NodeRecord()
        layout = ShardLayout(samples=SAMPLES, shards=5)
        served = ServedDataset(content="f" * 32, classes=("a", "b"), layout=layout, labels=labels)
        self.cached = cached
        stored = dataclasses.replace(served, store="s3://bucket/set")
        self.table = SessionTable(
            {name: stored if name in cached else served for name in datasets},
            self.limits,
            self.record,
        )
        # By fetch: session and batch, until it is let go; those whose samples are there.
        self.fetches: dict[int, tuple[int, Key]] = {}
        self.there: set[int] = set()
        self.checks: dict[int, events.CheckSamples] = {}
        self.table.identity = IDENTITY
        self.counters = self.table.counters
        self.now_s = 0.0
        self.available_bytes = 1 << 40
        self.is_local = self.is_ipc = False  # where clients connect from
        self._next_session, self._next_worker = itertools.count(1), itertools.count(1)
        self.workers: dict[int, list[int]] = {}  # tickets in flight, oldest first
        self.fills: dict[int, Fill] = {}
        self.open: dict[int, Session] = {}  # memory that exists
        # By (session, slot): the batch that it was last filled for, until it is returned.
        self.holders: dict[Key, tuple[Key, Wanted | None]] = {}
        # By session whose slots a client maps: the batch lent in each slot.
        self.mapped: dict[int, dict[int, Key]] = {}
        self.claims_refused: list[str] = []
        self.returning: list[Key] = []
        self.closing: list[int] = []
        self.clients: dict[bytes, ClientView] = {}
        self.inbox: list[tuple[bytes, NodeMessage]] = []
        self.sent: list[Chunk] = []
        self.filled: Fill | None = None
        self.killed: list[int] = []
        self.kills: list[events.KillWorker] = []
        self.silences: list[events.LogSilence] = []
        self.resumed: list[events.LogProgress] = []
        # What a worker's process does, and its share of a CPU; without an entry, nobody can see it.
        self.states: dict[int, tuple[KernelState, float]] = {}
        self.cpu_s: dict[int, float] = {}
        self.read_bytes: dict[int, int] = {}
        self.slot_s = 0.0  # of all slots of open sessions, until the last event
        self._applied_s = 0.0

    # --- events -------------------------------------------------------------------------------

    def apply(self, event: events.Event) -> list[events.Instruction]:
        """Have the table handle an event; check and carry out the instructions."""
        open_slots = sum(s.layout.slots for s in self.table.sessions.open.values())
        self.slot_s += open_slots * (self.now_s - self._applied_s)
        self._applied_s = self.now_s
        done: list[events.Instruction] = []
        coming = [event]
        while coming:
            for instruction in self.table.handle(coming.pop(0), self.now_s):
                done.append(instruction)
                coming += self._carry_out(instruction)
        self._check()
        return done

    def message(
        self, peer: bytes, message: Hello | Request | Ping | Bye, account: str = ""
    ) -> list[events.Instruction]:
        if not isinstance(message, Hello):
            return self.apply(events.MessageReceived(peer, message))
        number = next(self._next_session)
        self.clients.pop(peer, None)
        local = {"is_local": self.is_local, "is_ipc": self.is_ipc}
        return self.apply(
            HelloReceived(number, peer, message, self.available_bytes, account, **local)
        )

    def hello(
        self,
        peer: bytes,
        *,
        window: int = 3,
        dataset: str = "d",
        job: str = "",
        account: str = "",
        **fields: object,
    ) -> NodeMessage:
        """Greet; return the answer."""
        made = recipe(**fields)
        greeting = Hello(dataset=dataset, recipe=made, seed=1, window=window, client="c", job=job)
        self.message(peer, greeting, account)
        return self.inbox[-1][1]

    def request(self, peer: bytes, want: list[Key], release: list[Key]) -> None:
        """A client requests and releases batches; the requested ones are wanted unless refused."""
        view = self.clients[peer]
        for key in release:
            view.wanted.pop(key, None)
        lent = self.mapped.get(view.session, {})
        for slot in [slot for slot, key in lent.items() if key in release]:
            del lent[slot]
        before = len(self.inbox)
        fresh = [key for key in dict.fromkeys(want) if key not in view.wanted]
        for key in fresh:
            view.wanted[key] = Wanted()
        self.message(peer, Request(session=view.session, want=tuple(want), release=tuple(release)))
        if any(isinstance(m, Refused) and p == peer for p, m in self.inbox[before:]):
            for key in fresh:
                assert not view.wanted.pop(key).sent, "a refused batch was sent"
        else:
            view.has_requested |= bool(fresh)
        assert len(view.wanted) <= view.window

    def bye(self, peer: bytes) -> None:
        self.message(peer, Bye(session=self.clients.pop(peer).session))

    def claim(self, session: int, connection: int = 1) -> bool:
        """A process claims a session's slots; return whether it gets them."""
        done = self.apply(events.SlotsClaimed(session, connection))
        return any(isinstance(instruction, events.ShareSlots) for instruction in done)

    def unmap(self, session: int, *, has_died: bool = True) -> None:
        """The client that maps a session's slots dies, or unmaps them."""
        del self.mapped[session]
        self.apply(events.HolderGone(session, has_died))
        for peer in [
            p for p, v in self.clients.items() if v.session == session and v.has_requested
        ]:
            del self.clients[peer]

    def ping(self, peer: bytes, **totals: float) -> None:
        self.message(peer, Ping(session=self.clients[peer].session, **totals))

    def join(self) -> int:
        worker = next(self._next_worker)
        self.workers[worker] = []
        self.apply(events.WorkerJoined(worker))
        return worker

    def lose(self, worker: int, *, was_killed: bool = False, is_held: bool = False) -> None:
        """A worker dies, or is killed while blocked in a read (``is_held``)."""
        for ticket in self.workers.pop(worker):
            del self.fills[ticket]
        self.states.pop(worker, None)
        self.apply(events.WorkerLost(worker, was_killed, is_held))

    def release(self, worker: int) -> None:
        self.apply(events.WorkerReleased(worker))

    def fill(self, worker: int, *, busy_s: float = 0.0, cpu_s: float = 0.0) -> Fill:
        ticket = self.workers[worker].pop(0)
        self.filled = fill = self.fills.pop(ticket)
        _, wanted = self.holders[fill.session, fill.slot]
        if wanted is not None:
            wanted.filled |= set(range(fill.first, fill.first + fill.count))
        self.apply(Filled(ticket, busy_s, cpu_s))
        done, self.filled = self.filled, None
        return done

    def fail(self, worker: int, code: str = "dataset", sample: int | None = 3) -> None:
        ticket = self.workers[worker].pop(0)
        del self.fills[ticket]
        self.apply(FillFailed(ticket, code, f"sample {sample} is damaged", sample))

    def fetched(self, position: int = 0, problem: str = "") -> None:
        """The samples of a fetch are there, or cannot be had."""
        fetch = [*(fetch for fetch in self.fetches if fetch not in self.there)][position]
        self.there.add(fetch)
        session, key = self.fetches[fetch]
        if problem and (view := self._view(session)) is not None and key in view.wanted:
            assert not view.wanted[key].failed
        self.apply(events.SamplesFetched(fetch, problem))

    def checked(self, position: int = 0, problem: str = "") -> None:
        """The samples of a doubted chunk were looked at."""
        fetch = [*self.checks][position]
        del self.checks[fetch]
        self.apply(events.SamplesFetched(fetch, problem))

    def return_slot(self, position: int = 0) -> None:
        """The socket has finished with a slot that is wanted back."""
        key = self.returning.pop(position)
        self.holders.pop(key, None)
        self.apply(events.SlotReturned(*key))

    def close_slots(self, position: int = 0) -> None:
        """The socket has finished with all slots of an ended session."""
        session = self.closing.pop(position)
        del self.open[session]
        self.holders = {key: held for key, held in self.holders.items() if key[0] != session}
        self.returning = [key for key in self.returning if key[0] != session]
        self.apply(events.SlotsClosed(session))

    def advance(self, seconds: float) -> None:
        """Time passes; the table handles events.ClockAdvanced if due, with looks at the workers."""
        self.now_s += seconds
        for worker, (_, share) in self.states.items():
            self.cpu_s[worker] = self.cpu_s.get(worker, 0.0) + share * seconds
        if self.table.check_at_s <= self.now_s:
            quiet = [w for w in self.table.watch.quiet_workers(self.now_s) if w in self.states]
            looks = {
                w: ProcessLook(self.states[w][0], self.cpu_s.get(w, 0.0), self.read_bytes.get(w, 0))
                for w in quiet
            }
            self.apply(events.ClockAdvanced(looks))

    def wait(self, seconds: float) -> None:
        """Time passes as in a node process, which wakes up whenever the table wants it to."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.advance(max(0.0, min(end_s, self.table.check_at_s) - self.now_s))

    def finish(self) -> None:
        """Finish everything in flight: workers fill, the socket sends, slots return."""
        while self.fills or self.returning or self.closing or self.checks or self.is_fetching:
            while self.is_fetching:
                self.fetched()
            while self.checks:
                self.checked()
            for worker in [w for w, tickets in self.workers.items() if tickets]:
                self.fill(worker)
            while self.returning:
                self.return_slot()
            while self.closing:
                self.close_slots()

    @property
    def is_fetching(self) -> bool:
        return bool(self.fetches.keys() - self.there)

    def refusals(self) -> list[str]:
        return [message.code for _, message in self.inbox if isinstance(message, Refused)]

    # --- checks -------------------------------------------------------------------------------

    def _carry_out(self, instruction: events.Instruction) -> list[events.Event]:
        match instruction:
            case events.OpenSlots(session):
                assert session.number not in self.open
                self.open[session.number] = session
                return [events.SlotsOpened(session.number)]
            case Fill():
                self._check_fill(instruction)
            case events.FetchSamples(batch):
                assert batch.session.dataset in self.cached
                assert batch.fetch not in self.fetches
                self.fetches[batch.fetch] = batch.session.number, (batch.epoch, batch.index)
            case events.CheckSamples(fetch, chunk):
                assert chunk.batch.fetch in self.there, "its samples stay there meanwhile"
                self.checks[fetch] = instruction
            case events.LetGo(fetch):
                session, key = self.fetches.pop(fetch)
                self.there.discard(fetch)
                filling = [(fill.session, (fill.epoch, fill.index)) for fill in self.fills.values()]
                assert (session, key) not in filling, "a worker may read them"
            case events.SendChunk():
                self._check_chunk(instruction)
            case events.ShareSlots(session):
                assert session in self.open
                assert session not in self.mapped
                self.mapped[session] = {}
            case events.RefuseClaim(_, reason):
                self.claims_refused.append(reason)
            case events.ReturnSlot(session, slot):
                assert slot not in self.mapped.get(session, {}), "it may still be read"
                assert (session, slot) not in self.returning
                assert not any((f.session, f.slot) == (session, slot) for f in self.fills.values())
                view = self._view(session)
                if view is not None and (session, slot) in self.holders:
                    key, wanted = self.holders[session, slot]
                    assert view.wanted.get(key) is not wanted, "it is still lent to the client"
                self.returning.append((session, slot))
            case events.CloseSlots(session):
                assert not any(fill.session == session for fill in self.fills.values())
                assert session not in self.closing
                assert session not in self.mapped, "it may still be read"
                self.fetches = {f: of for f, of in self.fetches.items() if of[0] != session}
                self.there &= self.fetches.keys()
                self.closing.append(session)
            case events.KillWorker(chunk):
                worker = chunk.worker
                assert worker in self.workers
                assert worker not in self.killed, "a worker is killed once"
                assert self.workers[worker], "it has a chunk"
                assert instruction.silent_s >= DEADLINE_MIN_S - _ROUNDING_S
                if instruction.condition == "starved":
                    least_s = CHUNK_DEADLINE_S - _ROUNDING_S
                    assert instruction.silent_s >= least_s, "it only lacks CPU time"
                self.killed.append(worker)
                self.kills.append(instruction)
            case events.LogSilence():
                assert instruction.silent_s >= SILENT_S - _ROUNDING_S
                self.silences.append(instruction)
            case events.LogProgress():
                self.resumed.append(instruction)
            case events.Send(peer, message):
                self._receive(peer, message)
        return []

    def _check_fill(self, fill: Fill) -> None:
        self.workers[fill.worker].append(fill.ticket)
        assert len(self.workers[fill.worker]) <= 2, "a worker holds two chunks at most"
        assert fill.session in self.open, "memory exists while workers write"
        assert fill.session not in self.closing
        assert 0 <= fill.slot < self.open[fill.session].layout.slots
        slot_key = fill.session, fill.slot
        if self.open[fill.session].dataset in self.cached:
            batch_key = fill.session, (fill.epoch, fill.index)
            assert batch_key in [self.fetches[fetch] for fetch in self.there], "they are there"
        assert fill.slot not in self.mapped.get(fill.session, {}), "a lent slot is not written"
        assert slot_key not in self.returning, "a slot is reused only once it is returned"
        key = fill.epoch, fill.index
        view = self._view(fill.session)
        batch = key, view.wanted[key] if view is not None else None
        if fill.session in self.mapped and slot_key in self.holders:
            self._forget_released(slot_key)
        assert self.holders.setdefault(slot_key, batch) == batch, "a slot holds one batch"
        rows = set(range(fill.first, fill.first + fill.count))
        for other in self.fills.values():
            if (other.session, other.slot) == slot_key:
                assert not rows & set(range(other.first, other.first + other.count))
        self.fills[fill.ticket] = fill

    def _forget_released(self, slot_key: tuple[int, int]) -> None:
        """Forget what a slot held that only the client has read, once it has released that."""
        view = self._view(slot_key[0])
        assert view is not None, "the client has a session"
        key, wanted = self.holders[slot_key]
        in_flight = any((fill.session, fill.slot) == slot_key for fill in self.fills.values())
        if view.wanted.get(key) is not wanted and not in_flight:
            del self.holders[slot_key]

    def _check_chunk(self, sent: events.SendChunk) -> None:
        chunk = sent.chunk
        assert self.filled is not None, "a chunk is sent when it is filled"
        assert (chunk.session, sent.slot) == (self.filled.session, self.filled.slot)
        assert (chunk.first, chunk.images) == (self.filled.first, self.filled.count)
        assert chunk.session not in self.mapped, "a client that maps the slots gets no copies"
        view = self.clients[sent.peer]
        assert view.session == chunk.session
        wanted = view.wanted[chunk.epoch, chunk.index]
        assert not wanted.failed, "no chunk of a failed batch is sent"
        rows = set(range(chunk.first, chunk.first + chunk.images))
        assert not rows & wanted.sent, "each row is sent once"
        wanted.sent |= rows
        self.sent.append(chunk)

    def _check_lent(self, peer: bytes, lent: Lent) -> None:
        view = self.clients[peer]
        assert view.session == lent.session
        wanted = view.wanted[lent.epoch, lent.index]
        assert not wanted.failed
        assert not wanted.sent, "each batch is lent once"
        assert self.holders[lent.session, lent.slot][1] is wanted
        assert wanted.filled == ROWS, "the whole batch is filled"
        assert lent.slot not in self.mapped[lent.session], "a slot is lent once at a time"
        assert lent.slot < view.window
        self.mapped[lent.session][lent.slot] = lent.epoch, lent.index
        wanted.sent |= ROWS

    def _receive(self, peer: bytes, message: NodeMessage) -> None:
        self.inbox.append((peer, message))
        if isinstance(message, Welcome):
            self.clients[peer] = ClientView(message.session, message.window, message.batches)
        elif isinstance(message, Failed):
            wanted = self.clients[peer].wanted[message.epoch, message.index]
            assert not wanted.failed, "a batch fails once"
            wanted.failed = True
        elif isinstance(message, Lent):
            self._check_lent(peer, message)

    def _view(self, session: int) -> ClientView | None:
        return next((v for v in self.clients.values() if v.session == session), None)

    def _check(self) -> None:
        registry = self.table.sessions
        for account in {"", *(session.account for session in registry)}:
            assert registry.used_by(account) == self._count_use(account)
        assert registry.used == self._count_use(None)
        assert registry.used.slots_bytes <= self.limits.slots_bytes
        assert len(registry.open) <= self.limits.sessions_max
        seconds = copy.copy(self.record.slots)
        for session in registry.open.values():
            states = enumerate(session.slot_times.states)
            taken = [slot for slot, state in states if state == "free"]
            taken += [batch.slot for batch in session.wanted.values() if batch.slot >= 0]
            assert len({*taken}) == len(taken), "a slot is free, or belongs to one batch"
            add(seconds, session.slot_times.seconds(self.now_s))
        states_s = seconds.free + seconds.filling + seconds.sending + seconds.client
        assert math.isclose(states_s, self.slot_s, rel_tol=1e-9, abs_tol=1e-6)
        assert len(self.fills) == self.table.dispatcher.chunks_in_flight
        held = sum(self.open[session].layout.total_bytes for session in self.mapped)
        assert registry.held_bytes == held

    def _count_use(self, account: str | None) -> Usage:
        """Count what the sessions of an account use, or all sessions (None)."""
        mine = [s for s in self.open.values() if account in (None, s.account)]
        live = [session for session in mine if session.number in self.table.sessions.open]
        return Usage(
            open=len(live),
            ended=len(mine) - len(live),
            slots_bytes=sum(session.layout.total_bytes for session in mine),
            recipes=Counter((session.dataset, session.hello.recipe) for session in live),
        )
