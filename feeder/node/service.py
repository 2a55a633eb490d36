"""What a node process does about events: asks the state machine, and carries out what it says.

For a chunk that is: one message to the client whose pixels are not copied, and one small packet to
the worker. Decisions are the state machine's; this module only turns bytes into events and
instructions into calls.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from feeder import __version__
from feeder.errors import ProtocolError
from feeder.host.memory_budget import available_bytes
from feeder.metrics import Counters, SessionCounters, flatten
from feeder.node.claim_listener import ClaimListener
from feeder.node.router import PeerUnreachableError, Router
from feeder.node.slot_store import SlotStore
from feeder.node.worker_pool import Joined, Lost, PoolEvent, Released, WorkerPool
from feeder.process import log_lines
from feeder.remedies import lift_limit
from feeder.sample.cache_file import DecodedCache
from feeder.session import events
from feeder.session.admission import MESSAGE_CHARS_MAX, NodeIdentity, ServedDataset, SessionLimits
from feeder.session.fair_share import MALFORMED_COST, FairShare, cost_of
from feeder.session.table import SessionTable
from feeder.wire.messages import (
    BadRecipe,
    Chunk,
    ClientMessage,
    Hello,
    Lent,
    NodeMessage,
    Refused,
    RefusedCode,
    Stats,
    StatsRequest,
    VersionMismatch,
    decode_from_client,
)
from feeder.worker.messages import CloseSession, Fill, Filled, OpenSession

_SESSION_BITS: Final = 63

_STALL_S: Final = 0.5
"""Later than that to what is due: it is ten times a second while anybody is connected. Clients ping
every second, and the shortest lease is 2 s: less than this costs nobody his lease."""

_CATCH_UP_S: Final = 1.0
"""Until all is read that waits after that, in libzmq's thread too."""

_log = logging.getLogger(__name__)


class NodeService:
    """The sessions of a node process with everything they act upon."""

    def __init__(
        self,
        datasets: Mapping[str, ServedDataset],
        limits: SessionLimits,
        identity: NodeIdentity,
        router: Router,
        door: ClaimListener,
        pool: WorkerPool,
        placement_warnings: int,
        cache: DecodedCache | None = None,
        *,
        library_warnings: int = 0,
        restarts: int = 0,
    ) -> None:
        """Serve with the workers of ``pool``, which report through ``on_worker``.

        ``placement_warnings`` is how often this process did not get its place as planned,
        ``library_warnings`` how many things are wrong with its libraries, ``restarts`` how many
        processes before it have crashed.
        """
        self._placement_warnings = placement_warnings
        self._library_warnings = library_warnings
        self._cache = cache
        self._restarts = restarts
        self._router = router
        self._door = door
        self._pool = pool
        self._limits = limits
        self._identity = identity
        self._counters = SessionCounters()
        self._table = SessionTable(datasets, limits, identity, self._counters)
        self._slots = SlotStore()
        self._shares = FairShare()
        self._open: dict[int, OpenSession] = {}  # what a worker that comes up is told
        self._unreachable: dict[bytes, float] = {}  # since when ``run_due`` knows, inf: not yet
        self._started_s = time.monotonic()
        self._judge_at_s = 0.0  # nobody is taken for silent before

    @property
    def deadline_s(self) -> float:
        """When ``run_due`` is due, if nothing arrives before."""
        if self._unreachable and not self._router.has_unread:
            return 0.0
        return min(max(self._table.check_at_s, self._judge_at_s), self._slots.recheck_at_s)

    @property
    def is_settled(self) -> bool:
        """Whether all that was asked for is filled, sent, and out of the socket."""
        return self._table.is_idle and not self._slots.is_lent

    def apply(self, event: events.Event, at_s: float | None = None) -> None:
        """Have the state machine handle an event, and carry out what follows, to the end.

        It happens at ``at_s``, by default now.
        """
        events = deque([event])
        while events:
            now_s = time.monotonic() if at_s is None else at_s
            for instruction in self._table.handle(events.popleft(), now_s):
                following = self._carry_out(instruction, now_s)
                if following is not None:
                    events.append(following)

    def on_worker(self, report: PoolEvent) -> None:
        """Act upon what a worker reports."""
        match report:
            case Filled():
                self.apply(events.ChunkFilled(report.ticket))
            case Joined():
                for session, message in self._open.items():
                    fd = self._slots.memory(session).fileno()
                    self._pool.send(report.worker, message, fd)
                self.apply(events.WorkerJoined(report.worker))
            case Lost(worker, was_killed, is_held):
                self.apply(events.WorkerLost(worker, was_killed, is_held))
            case Released():
                self.apply(events.WorkerReleased(report.worker))
            case _:
                _log.warning("a chunk cannot be filled: %s", report.message)
                self.apply(events.ChunkFailed(report.ticket, report.code, report.message))

    def on_claim(self, connection: int, session: int) -> None:
        """Act upon a claim of a session's slots."""
        self.apply(events.SlotsClaimed(session, connection))

    def on_holder_gone(self, session: int, has_died: bool) -> None:
        """Act upon the end of who mapped a session's slots."""
        self.apply(events.HolderGone(session, has_died))

    def on_disconnected(self, peers: Sequence[bytes], now_s: float) -> None:
        """Act upon the end of connections: whose they were, b"" of who never spoke."""
        for peer in filter(None, peers):
            self._unreachable.setdefault(peer, float("inf"))
        if peers:
            self.recheck_slots(now_s)

    def on_frame(self, peer: bytes, frame: bytes) -> None:
        """Act upon a frame from a client; what does not parse is counted and dropped.

        So is what comes from a client that says far more than the batches account for.
        """
        now_s = time.monotonic()
        if not self._shares.may_speak(peer, now_s):
            self._router.waste(len(frame))
            self._router.counters.drop("over-rate")
            if self._shares.is_to_be_told(peer, now_s):
                self._send(peer, Refused(code="rate", message=_too_much(self._router.account())))
            return
        message = self._decode(peer, frame)
        if message is None:
            self._router.waste(len(frame))
            self._shares.charge(peer, MALFORMED_COST)
            return
        self._shares.charge(peer, cost_of(message))
        if isinstance(message, Hello):
            fresh, account = secrets.randbits(_SESSION_BITS), self._router.account()
            self.apply(events.MessageReceived(peer, message, fresh, available_bytes(), account))
        elif isinstance(message, StatsRequest):
            self._send(peer, Stats(counters=self.counters()))
        else:
            self.apply(events.MessageReceived(peer, message))

    def run_due(self, now_s: float, due_s: float) -> None:
        """Do what is due by now: slots that have come back, leases, deadlines of workers.

        ``due_s`` is when the caller meant to be here at the latest. Where it was held up (stopped,
        say), what others said meanwhile is read first.
        """
        if now_s - due_s > _STALL_S:
            self._judge_at_s = now_s + _CATCH_UP_S
        if self._unreachable:
            self._report_unreachable(now_s)
        if self._slots.recheck_at_s <= now_s:
            self.recheck_slots(now_s)
        if max(self._table.check_at_s, self._judge_at_s) <= now_s:
            self.apply(events.ClockAdvanced(), now_s)

    def _report_unreachable(self, now_s: float) -> None:
        """Tell of peers whose connection is over, once what they said before it was read.

        Otherwise a client that says Bye and leaves would be taken for lost by whoever was just
        about to send it something. Others who never stop saying something delay that, but not for
        ever.
        """
        has_unread = self._router.has_unread
        for peer, since_s in list(self._unreachable.items()):
            if since_s == float("inf"):
                self._unreachable[peer] = now_s
            elif not has_unread or now_s - since_s > _CATCH_UP_S:
                del self._unreachable[peer]
                self.apply(events.PeerGone(peer))

    def recheck_slots(self, now_s: float) -> None:
        """Look whether slots that are wanted back have come back."""
        for event in self._slots.recheck(now_s):
            self.apply(event)

    def counters(self) -> Counters:
        """Return all that is counted here, and how things stand, by name."""
        groups = (
            self._counters,
            self._router.counters,
            self._door.counters,
            self._pool.counters,
            log_lines.counters,
        )
        return {
            "node": self._identity.node,
            "feeder_version": __version__,
            "self_test": self._identity.self_test,
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "sessions": self._table.open_sessions,
            "slots_committed_bytes": self._table.committed_bytes,
            "slots_held_bytes": self._table.held_bytes,
            "slots_budget_bytes": self._limits.slots_bytes,
            **self._describe_cache(),
            "datasets_stalled": self._table.stalled_datasets,
            "workers": len(self._pool.pids),
            "node_restarts": self._restarts,
            "placement_warnings": self._placement_warnings,
            "library_warnings": self._library_warnings,
            **{f"library.{name}": text for name, text in self._identity.libraries.items()},
            **flatten(groups),
        }

    def _describe_cache(self) -> Counters:
        cache = self._cache
        return {
            "cache_entries": 0 if cache is None else cache.entries,
            "cache_used_bytes": 0 if cache is None else cache.used_bytes,
            "cache_budget_bytes": 0 if cache is None else cache.plan.total_bytes,
        }

    def _carry_out(self, instruction: events.Instruction, now_s: float) -> events.Event | None:
        """Do what the state machine says; return what it is to be told of that."""
        match instruction:
            case events.SendChunk():
                self._send_chunk(instruction)
            case events.FillChunk(worker, ticket, session, slot, epoch, index, first, count):
                fill = Fill(ticket, session, slot, epoch, index, first, count)
                self._pool.send(worker, fill)
            case events.ReturnSlot(session, slot):
                return self._slots.want_back(session, slot, now_s)
            case events.Send(peer, message):
                self._send(peer, message)
            case events.OpenSlots():
                return self._open_slots(instruction)
            case events.ShareSlots(session, connection):
                if not self._door.grant(connection, session, self._slots.memory(session)):
                    return events.HolderGone(session)
            case events.RefuseClaim(connection, reason):
                self._door.refuse(connection, reason)
            case events.CloseSlots(session):
                if self._open.pop(session, None) is not None:
                    self._pool.send_to_all(CloseSession(session=session))
                _log.debug("session %x ended", session)
                return self._slots.want_closed(session, now_s)
            case events.KillWorker(worker, dataset):
                self._pool.kill(worker, f"reading dataset {dataset}")
        return None

    def _send_chunk(self, chunk: events.SendChunk) -> None:
        header = Chunk(
            session=chunk.session,
            epoch=chunk.epoch,
            index=chunk.index,
            first=chunk.first,
            images=chunk.count,
            valid=chunk.valid,
        )
        arrays = self._slots.chunk(chunk.session, chunk.slot, chunk.first, chunk.count)
        try:
            tracker = self._router.send_chunk(chunk.peer, header, arrays)
        except PeerUnreachableError:
            self._unreachable.setdefault(chunk.peer, float("inf"))
        else:
            self._slots.lend(chunk.session, chunk.slot, tracker)
            self._shares.earn(chunk.peer)

    def _send(self, peer: bytes, message: NodeMessage) -> None:
        if isinstance(message, Lent):
            self._shares.earn(peer)
        try:
            self._router.send(peer, message)
        except PeerUnreachableError:
            self._router.counters.sends_dropped += 1
            self._unreachable.setdefault(peer, float("inf"))

    def _open_slots(self, wanted: events.OpenSlots) -> events.SlotsOpened | events.SlotsRefused:
        try:
            memory = self._slots.open(wanted.session, wanted.layout)
        except OSError as error:
            _log.warning("no slot memory for another session: %s", error.strerror)
            return events.SlotsRefused(
                wanted.session,
                f"the feeder cannot create {wanted.layout.total_bytes / 1e6:.0f} MB of slot memory "
                f"({error.strerror}): close other sessions, or "
                f"{lift_limit(error.errno, wanted.layout.total_bytes)}",
            )
        message = self._open[wanted.session] = OpenSession(
            session=wanted.session,
            dataset=wanted.dataset,
            recipe=wanted.recipe,
            seed=wanted.seed,
            slots=wanted.layout.slots,
        )
        self._pool.send_to_all(message, memory.fileno())
        _log.debug("session %x on %s, %d slots", wanted.session, wanted.dataset, message.slots)
        return events.SlotsOpened(wanted.session)

    def _decode(self, peer: bytes, frame: bytes) -> ClientMessage | None:
        try:
            return decode_from_client(frame)
        except VersionMismatch as error:
            self._refuse_frame(peer, "version", error)
        except BadRecipe as error:
            self._refuse_frame(peer, "bad-recipe", error)
        except ProtocolError:
            self._router.counters.drop("malformed")
        return None

    def _refuse_frame(self, peer: bytes, code: RefusedCode, error: ProtocolError) -> None:
        self._router.counters.drop(code)
        self._send(peer, Refused(code=code, message=str(error)[:MESSAGE_CHARS_MAX]))


def _too_much(account: str) -> str:
    return (
        f"{account or 'this client'} says more than a client that takes batches has to, and is not "
        "listened to for now: ask for batches as others are released, and ping once a second"
    )
