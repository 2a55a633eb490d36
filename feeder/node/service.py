"""Turns a node process's input into events of the state machine, and carries out its instructions.

All decisions are the state machine's. A chunk costs one message to the client, without a copy of
its pixels, and one small packet to the worker. Log lines about sessions have the id that the
client's log has too: sessions that begin and end as they should are logged for debugging only, one
that ended otherwise always.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Final

from feeder.host.memory_budget import available_bytes
from feeder.metrics.counters import NodeStatus
from feeder.metrics.fields import Counters, flatten
from feeder.metrics.hangs import CATCH_UP_S, SUSPENDED_S
from feeder.metrics.report import VERDICT_CHARS_MAX
from feeder.node.blob_requests import BlobRequests
from feeder.node.claim_listener import ClaimListener
from feeder.node.clients import Clients
from feeder.node.fetches import Fetches
from feeder.node.messages import Board, read_board
from feeder.node.name_requests import NameRequests, find_refusal
from feeder.node.router import Router
from feeder.node.selected_parts import SelectedParts
from feeder.node.slot_store import SlotStore
from feeder.node.worker_pool import BlobsArrived, PoolEvent, WorkerPool
from feeder.process import log_lines
from feeder.process.path_text import printable
from feeder.remedies import lift_limit
from feeder.sample.cache_file import DecodedCache
from feeder.session import events
from feeder.session.admission import HelloReceived, ServedDataset
from feeder.session.fair_share import EARNED
from feeder.session.state import Session
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, FillFailed
from feeder.wire.messages import (
    BlobsRequest,
    ClientMessage,
    Hello,
    HostStats,
    HostStatsRequest,
    NamesRequest,
    Refused,
    Request,
    Sources,
    SourcesRequest,
    Stats,
    StatsRequest,
)
from feeder.wire.session_id import session_id
from feeder.worker.messages import CloseSession, NamesRead, OpenSession

REPORT_MAX_S: Final = 3.0
"""A supervisor that has made no report of the host for longer is stopped or overloaded."""

_SESSION_BITS: Final = 63
_NAME_CHARS: Final = 100  # of a dataset's name in a counter's, which may have 128

_log = logging.getLogger(__name__)


class NodeService:
    """The sessions of a node process with everything they act upon."""

    def __init__(
        self,
        table: SessionTable,
        router: Router,
        claim_listener: ClaimListener,
        pool: WorkerPool,
        status: NodeStatus,
        *,
        cache: DecodedCache | None = None,
        fetches: Fetches,
        board: int,
        datasets: Mapping[str, ServedDataset | str] | None = None,
        parts: SelectedParts | None = None,
    ) -> None:
        """Serve with the workers of ``pool``, which report through ``on_worker``.

        ``status`` has what the process is; what it holds is counted here. ``board`` is the
        descriptor of the supervisor's. ``parts`` has the selections; ``datasets`` all
        datasets, also those that only selections need; by default, there are none of these.
        """
        self.table = table
        self.router = router
        self.pool = pool
        self.cache = cache
        self._claim_listener = claim_listener
        self._status = status
        status.dataset = {
            f"{name[:_NAME_CHARS]}.loss": dataset.loss
            for name, dataset in table.datasets.items()
            if isinstance(dataset, ServedDataset) and dataset.loss
        }
        status.slots_budget_bytes = table.limits.slots_bytes
        status.cache_budget_bytes = 0 if cache is None else cache.plan.total_bytes
        status.datasets_failed = sum(isinstance(d, str) for d in table.datasets.values())
        self._slots = SlotStore()
        self.fetches = fetches
        self.clients = Clients(router, self._on_message)
        self._board_fd = board
        self._board = Board()
        self.read_board()
        self.names = NameRequests(table.datasets, pool, self.clients.send)
        datasets = table.datasets if datasets is None else datasets
        self._blobs = BlobRequests(datasets, fetches.find_there, pool, table.watch, router)
        self._parts = parts or SelectedParts({}, {}, {})
        self._open: dict[int, OpenSession] = {}  # sent to each new worker
        self.started_s = time.monotonic()
        self._turned_s = 0.0
        self.caught_up_s = 0.0
        """When the backlog of the last stall is read; no lease or deadline expires before."""

    @property
    def deadline_s(self) -> float:
        """When the next turn is due if nothing happens before."""
        if self.router.ended and not self.router.has_unread:
            return 0.0
        return min(max(self.table.check_at_s, self.caught_up_s), self._slots.deadline_s)

    def begin_turn(self, now_s: float, due_s: float) -> None:
        """Notice a stall, before the messages that waited meanwhile: the turn was due at ``due_s``.

        No deadline expires for a while then, and the stall is discounted for the workers.
        """
        lost_s = now_s - max(due_s, self._turned_s)  # some parts are due since time 0
        self._turned_s = now_s
        if lost_s > SUSPENDED_S:
            self.caught_up_s = now_s + CATCH_UP_S
            self.apply([events.Resumed()], now_s)

    def run_due(self, now_s: float) -> None:
        """Do what is due by now: returned slots, leases, deadlines of workers."""
        if self.router.ended:
            self.apply(map(events.PeerGone, self.router.take_ended()), now_s)
        if self._slots.loans:
            self.apply(self._slots.look_around(now_s), now_s)
        if max(self.table.check_at_s, self.caught_up_s) <= now_s:
            looks = self.pool.look(self.table.watch.quiet_workers(now_s))
            self.apply([events.ClockAdvanced(looks)], now_s)

    @property
    def is_settled(self) -> bool:
        """Whether all requested batches are filled, sent, and out of the socket."""
        return self.table.is_idle and not self._slots.loans

    def apply(self, happened: Iterable[events.Event], now_s: float) -> None:
        """Have the state machine handle events; carry out all that follows."""
        pending = list(happened)
        for event in pending:  # grows meanwhile
            for instruction in self.table.handle(event, now_s):
                match instruction:
                    case events.Send(peer, message):
                        self.clients.send(peer, message)
                    case Fill():
                        self.pool.send(instruction.worker, instruction)
                    case events.SendChunk():
                        self._send_chunk(instruction, now_s)
                    case events.ReturnSlot(session, slot):
                        pending += self._slots.want_back(session, slot, now_s)
                    case events.FetchSamples(batch):
                        pending += self.fetches.begin(batch)
                    case events.LetGo(fetch):
                        self.fetches.let_go(fetch)
                    # Those above for each batch, those below now and then.
                    case events.OpenSlots(opened):
                        pending.append(self._open_slots(opened))
                    case events.ShareSlots(session, connection):
                        memory = self._slots.memories[session]
                        if not self._claim_listener.grant(connection, session, memory):
                            pending.append(events.HolderGone(session))
                    case events.RefuseClaim(connection, reason):
                        self._claim_listener.refuse(connection, reason)
                    case events.CloseSlots(session):
                        if self._open.pop(session, None) is not None:
                            for worker in self.pool.numbers:
                                self.pool.send(worker, CloseSession(session=session))
                        self.fetches.end_session(session)
                        pending += self._slots.want_back(session, None, now_s)
                    case events.CheckSamples(fetch, chunk):
                        pending += self.fetches.check(fetch, chunk)
                    case events.LogEnd(ended, how):
                        log_session_end(ended, how, self.table.limits.lease_s)
                    case events.LogSilence(chunk) | events.LogProgress(chunk):
                        _log_silence(instruction, self.pool.pids.get(chunk.worker, 0))
                    case events.KillWorker():
                        self.pool.kill(instruction.chunk.worker, _describe_stuck(instruction))

    def _send_chunk(self, sent: events.SendChunk, now_s: float) -> None:
        chunk = sent.chunk
        memory = self._slots.memories[chunk.session]
        arrays = memory.chunk(sent.slot, chunk.first, chunk.images, chunk.epoch)
        tracker = self.router.send_chunk(sent.peer, chunk, arrays)
        if tracker is not None:
            self.clients.fair_share.charge(sent.peer, -EARNED)
            self._slots.lend(chunk.session, sent.slot, tracker, now_s)

    def _open_slots(self, session: Session) -> events.SlotsOpened:
        layout = session.layout
        try:
            memory = self._slots.open(session.number, layout)
        except OSError as error:
            return events.SlotsOpened(
                session.number,
                f"the feeder cannot create {layout.total_bytes / 1e6:.0f} MB of slot memory "
                f"({error.strerror}): close other sessions, or "
                f"{lift_limit(error.errno, layout.total_bytes)}",
            )
        message = self._open[session.number] = OpenSession(
            session=session.number,
            dataset=session.dataset,
            recipe=session.hello.recipe,
            seed=session.hello.seed,
            slots=layout.slots,
            labels=layout.labels,
        )
        for worker in self.pool.numbers:
            self.pool.send(worker, message, memory.fileno())
        _log_session(session, session.account, logging.DEBUG, f"opened with {layout.slots} slots")
        return events.SlotsOpened(session.number)

    def on_worker(self, report: PoolEvent, now_s: float) -> None:
        match report:
            case FillFailed(shard=shard):
                kind = {"kind": f"bad sample in {shard}" if shard else "chunk"}
                _log.warning("a chunk cannot be filled: %s", report.message, extra=kind)
            case events.WorkerJoined(worker):
                for session, message in self._open.items():
                    self.pool.send(worker, message, self._slots.memories[session].fileno())
            case events.WorkerLost(worker):
                self.names.on_lost(worker)
                self._blobs.on_lost(worker)
            case NamesRead():
                self.names.on_read(report, now_s)
                return
            case BlobsArrived(read, fd):
                self._blobs.on_read(read, fd)
                return
        self.apply([report], now_s)

    def _on_message(self, peer: bytes, message: ClientMessage, now_s: float) -> None:
        match message:
            case Request():  # what it releases has been sent
                if self._slots.loans:
                    self.apply(self._slots.look(message.session, now_s), now_s)
            case Hello():
                number, sender = secrets.randbits(_SESSION_BITS), self.router.sender()
                arrival = HelloReceived(number, peer, message, available_bytes(), *sender)
                self.apply([arrival], now_s)
                return
            case StatsRequest():
                self.clients.send(peer, Stats(counters=self.counters(now_s)))
                return
            case NamesRequest():
                self.names.add(peer, message, self.table.watch.stalled_names, now_s)
                return
            case SourcesRequest():
                self.clients.send(peer, self._find_sources(message))
                return
            case BlobsRequest():
                self._blobs.add(peer, message, now_s)
                return
            case HostStatsRequest():
                self.read_board()
                # After a suspension of all, the supervisor needs a moment for a new one.
                if now_s < max(self._board.clock_s + REPORT_MAX_S, self.caught_up_s):
                    self.router.send(peer, self._board.frame)
                else:
                    self.clients.send(peer, HostStats(report=None))
                return
        self.apply([events.MessageReceived(peer, message)], now_s)

    def _find_sources(self, request: SourcesRequest) -> Sources | Refused:
        refusal = find_refusal(request, self.table.datasets)
        if refusal is not None:
            return refusal
        return self._parts.find_sources(request, self.table.datasets)

    def read_board(self) -> None:
        """Read the latest report of the host; repeat its verdict in every Pong from now on."""
        self._board = read_board(self._board_fd) or self._board
        self.table.verdict = printable(self._board.verdict)[:VERDICT_CHARS_MAX]

    def counters(self, now_s: float) -> Counters:
        status, table, cache = self._status, self.table, self.cache
        status.uptime_s = round(now_s - self.started_s, 3)
        status.sessions = len(table.sessions.open)
        status.slots_committed_bytes = table.sessions.used.slots_bytes
        status.slots_held_bytes = table.sessions.held_bytes
        if cache is not None:
            status.cache_entries, status.cache_used_bytes = cache.entries, cache.used_bytes
        status.datasets_stalled = len(table.watch.stalled)
        status.workers = len(self.pool.pids)
        return flatten(
            status,
            self.pool.record,
            table.counters,
            self.router.counters,
            self._claim_listener.counters,
            self.pool.counters,
            self._blobs.counters,
            log_lines.counters,
        )


def log_session_end(session: Session, how: events.SessionEnd, lease_s: float) -> None:
    hello = session.hello
    job = f" in job {hello.job}" if hello.job else ""
    client = f"{printable(hello.client + job)} ({session.account})"
    level, text = {
        "closed": (logging.DEBUG, "ended"),
        "lost": (logging.INFO, "lost: its process or its connection has ended"),
        "expired": (logging.WARNING, f"expired: its client was silent for {lease_s:g} s"),
    }[how]
    _log_session(session, client, level, text)


def _log_session(session: Session, client: str, level: int, text: str) -> None:
    name = session_id(session.number)
    extra = {"session": name, "client": session.account, "dataset": session.dataset}
    line = f"session %s of %s on %s: {text}"
    _log.log(level, line, name, client, session.dataset, extra=extra)


def _log_silence(silence: events.LogSilence | events.LogProgress, pid: int) -> None:
    """Log that a worker has made no progress for a while, or that it has finished its chunk."""
    chunk = silence.chunk
    name = session_id(chunk.batch.session.number)
    extra = {"worker": chunk.worker, "session": name}
    if isinstance(silence, events.LogProgress):
        text = "worker %d (pid %d) makes progress again, after %.1f s"
        _log.info(text, chunk.worker, pid, chunk.silent_s, extra=extra)
        return
    line = (
        f"worker {chunk.worker} (pid {pid}) has made no progress for {silence.silent_s:.1f} s "
        f"(kernel state: {silence.kernel_state}); it fills rows {chunk.first} .. "
        f"{chunk.first + chunk.count - 1} of dataset {chunk.batch.session.dataset} for session "
        f"{name}"
    )
    _log.warning("%s", line, extra={**extra, "kind": "silence"})


def _describe_stuck(stuck: events.KillWorker) -> str:
    dataset = stuck.chunk.batch.session.dataset
    how = {"stopped": "stopped", "looping": "using CPU time", "asleep": "asleep"}
    if stuck.condition not in how:
        return f"reading dataset {dataset}"
    rows = "" if stuck.condition == "stopped" else f" with rows of dataset {dataset}"
    return f"{how[stuck.condition]} for {stuck.silent_s:.1f} s{rows}"
