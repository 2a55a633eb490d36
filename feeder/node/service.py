"""Turns a node process's input into events of the state machine, and carries out its instructions.

All decisions are the state machine's. A chunk costs one message to the client, without a copy of
its pixels, and one small packet to the worker.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from feeder import __version__
from feeder.host.memory_budget import available_bytes
from feeder.metrics.counters import NodeStatus
from feeder.metrics.fields import Counters, flatten
from feeder.metrics.hangs import CATCH_UP_S, SuspensionWatch
from feeder.metrics.report import VERDICT_CHARS_MAX
from feeder.node.claim_listener import ClaimListener
from feeder.node.client_frames import ClientFrames
from feeder.node.host_reports import HostReports
from feeder.node.messages import ReportPart
from feeder.node.name_requests import NameRequests
from feeder.node.router import Router
from feeder.node.sender import Sender
from feeder.node.session_log import (
    describe_stuck,
    log_progress,
    log_session_end,
    log_session_start,
    log_silence,
)
from feeder.node.slot_store import SlotStore
from feeder.node.worker_pool import PoolEvent, WorkerPool
from feeder.process import log_lines
from feeder.process.log_lines import of_kind
from feeder.process.path_text import printable
from feeder.remedies import lift_limit
from feeder.sample.cache_file import DecodedCache
from feeder.session import events
from feeder.session.admission import NodeIdentity, ServedDataset, SessionLimits
from feeder.session.fair_share import FairShare
from feeder.session.jobs import JobWeights
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, FillFailed
from feeder.wire.messages import (
    ClientMessage,
    Hello,
    HostStatsRequest,
    NamesRequest,
    Request,
    Stats,
    StatsRequest,
)
from feeder.worker.messages import CloseSession, NamesRead, OpenSession

_SESSION_BITS: Final = 63
_NAME_SHOWN: Final = 100  # characters of a dataset's name in a counter's, which may have 128

_log = logging.getLogger(__name__)


class NodeService:
    """The sessions of a node process with everything they act upon."""

    def __init__(
        self,
        datasets: Mapping[str, ServedDataset | str],
        limits: SessionLimits,
        identity: NodeIdentity,
        router: Router,
        claim_listener: ClaimListener,
        pool: WorkerPool,
        placement_warnings: int,
        cache: DecodedCache | None = None,
        *,
        library_warnings: int = 0,
        decoder: str = "",
        restarts: int = 0,
        ask_for_report: Callable[[], None] = lambda: None,
        weights: JobWeights | None = None,
    ) -> None:
        """Serve with the workers of ``pool``, which report through ``on_worker``.

        ``datasets`` has what sessions need of each, or why it cannot be served.

        ``placement_warnings`` and ``library_warnings`` are how many were reported at the start,
        ``restarts`` is how many predecessors of this process have crashed. ``decoder`` is what the
        workers decode with. ``ask_for_report`` asks the supervisor for the report of the host,
        which comes through ``on_report_part``. ``weights`` are those of jobs.
        """
        self._cache = cache
        self.refused_datasets = {
            name: reason for name, reason in datasets.items() if isinstance(reason, str)
        }
        """Those that cannot be served, and why."""
        self._router = router
        self._claim_listener = claim_listener
        self._pool = pool
        self._limits = limits
        self._status = NodeStatus(
            node=identity.node,
            feeder_version=__version__,
            self_test=identity.self_test,
            decoder=decoder,
            node_restarts=restarts,
            placement_warnings=placement_warnings,
            library_warnings=library_warnings,
            library=dict(identity.libraries),
            dataset={
                f"{name[:_NAME_SHOWN]}.loss": dataset.loss
                for name, dataset in datasets.items()
                if isinstance(dataset, ServedDataset) and dataset.loss
            },
            slots_budget_bytes=limits.slots_bytes,
            cache_budget_bytes=0 if cache is None else cache.plan.total_bytes,
            datasets_failed=len(self.refused_datasets),
        )
        self._table = self.table = SessionTable(datasets, limits, identity, pool.record, weights)
        self._slots = SlotStore()
        self._fair_share = FairShare()
        self._sender = Sender(router, self._fair_share)
        self.frames = ClientFrames(router, self._sender, self._fair_share, self._on_message)
        """What clients send; it calls ``_on_message``."""
        self._reports = HostReports(ask_for_report)
        self._names = NameRequests(datasets, pool.send, self._sender.send)
        self._open: dict[int, OpenSession] = {}  # sent to each new worker
        self._started_s = time.monotonic()
        self._suspension = SuspensionWatch()
        self.caught_up_s = 0.0
        """When the backlog of the last stall is read; no lease or deadline expires before."""

    @property
    def deadline_s(self) -> float:
        """When something is due."""
        if self._sender.is_lost_due:
            return 0.0
        return min(
            max(self._table.check_at_s, self.caught_up_s),
            self._slots.recheck_at_s,
            self._reports.deadline_s,
            self._names.deadline_s,
        )

    def wake_up_s(self, now_s: float) -> float:
        """Return when to call ``run_due`` if nothing happens before."""
        due_s = self.deadline_s
        if self._table.sessions.open:
            due_s = min(due_s, now_s + SuspensionWatch.CHECK_S)
        self._suspension.due_s = due_s
        return due_s

    @property
    def is_settled(self) -> bool:
        """Whether all requested batches are filled, sent, and out of the socket."""
        return self._table.is_idle and not self._slots.is_lent

    def apply(self, event: events.Event, at_s: float | None = None) -> None:
        """Have the state machine handle an event, and carry out all that follows.

        The event's time is ``at_s``, by default now.
        """
        self._note_stall(time.monotonic() if at_s is None else at_s)
        events = deque([event])
        while events:
            now_s = time.monotonic() if at_s is None else at_s
            for instruction in self._table.handle(events.popleft(), now_s):
                following = self._carry_out(instruction, now_s)
                if following is not None:
                    events.append(following)

    def on_worker(self, report: PoolEvent) -> None:
        """Handle a worker's report."""
        match report:
            case FillFailed(shard=shard):
                kind = of_kind(f"bad sample in {shard}" if shard else "chunk")
                _log.warning("a chunk cannot be filled: %s", report.message, extra=kind)
            case events.WorkerJoined(worker):
                for session, message in self._open.items():
                    self._pool.send(worker, message, self._slots.memory(session).fileno())
            case events.WorkerLost(worker):
                self._names.on_lost(worker)
            case NamesRead():
                self._names.on_read(report, time.monotonic())
                return
        self.apply(report)

    def on_claim(self, connection: int, session: int) -> None:
        """Handle a claim of a session's slots."""
        self.apply(events.SlotsClaimed(session, connection))

    def on_holder_gone(self, session: int, has_died: bool) -> None:
        """Handle the end of the connection of a client that mapped a session's slots."""
        self.apply(events.HolderGone(session, has_died))

    def on_disconnected(self, peers: Sequence[bytes], now_s: float) -> None:
        """Handle the end of peers' connections; b"" stands for one without messages."""
        self._sender.add_disconnected(peers)
        if peers:
            self.recheck_slots(now_s)

    def _on_message(self, peer: bytes, message: ClientMessage) -> None:
        now_s = time.monotonic()
        if isinstance(message, Hello):
            router = self._router
            self.apply(
                events.MessageReceived(
                    peer,
                    message,
                    secrets.randbits(_SESSION_BITS),
                    available_bytes(),
                    router.account(),
                    router.is_local(),
                    router.is_ipc(),
                )
            )
        elif isinstance(message, StatsRequest):
            self._sender.send(peer, Stats(counters=self.counters()))
        elif isinstance(message, NamesRequest):
            self._names.add(peer, message, self._table.watch.stalled_names, now_s)
            self._names.run_due(self._pool.numbers, now_s)
        elif isinstance(message, HostStatsRequest):
            is_answer, report = self._reports.request(peer, now_s)
            if is_answer:
                self._sender.send_report([peer], report)
        else:
            if isinstance(message, Request):  # what it releases has been sent
                self._note_sent(now_s, message.session)
            self.apply(events.MessageReceived(peer, message))

    def on_report_part(self, part: ReportPart) -> None:
        """Handle a piece of the supervisor's report of the host."""
        self._sender.send_report(*self._reports.add_part(part, time.monotonic()))

    def on_diagnosed(self, verdict: str) -> None:
        """Repeat the supervisor's verdict on the host in every Pong from now on."""
        self._table.verdict = printable(verdict)[:VERDICT_CHARS_MAX]

    def run_due(self, now_s: float, due_s: float) -> None:
        """Do what is due by now: returned slots, leases, deadlines of workers.

        ``due_s`` is when this call was due. After a stall the backlog of messages is read before
        any lease expires.
        """
        self._note_stall(now_s, due_s)
        for peer in self._sender.take_lost(now_s):
            self.apply(events.PeerGone(peer))
        if self._slots.recheck_at_s <= now_s:
            self.recheck_slots(now_s)
        if self._reports.deadline_s <= now_s:
            self._sender.send_report(self._reports.take_expired(now_s), None)
        if self._names.deadline_s <= now_s:
            self._names.run_due(self._pool.numbers, now_s)
        self._note_sent(now_s)
        if max(self._table.check_at_s, self.caught_up_s) <= now_s:
            looks = self._pool.look(self._table.watch.quiet_workers(now_s))
            self.apply(events.ClockAdvanced(looks), now_s)

    def _note_stall(self, now_s: float, due_s: float | None = None) -> None:
        """After a stall, let no deadline expire for a while, and discount it for the workers."""
        lost_s = self._suspension.observe(now_s, due_s)
        if lost_s:
            self.caught_up_s = now_s + CATCH_UP_S
            self.apply(events.Resumed(lost_s), now_s)

    def recheck_slots(self, now_s: float) -> None:
        """Handle the slots that the socket has finished reading."""
        for event in self._slots.recheck(now_s):
            self.apply(event)

    def _note_sent(self, now_s: float, session: int | None = None) -> None:
        """Record which slots the socket has finished reading, in one session or in all."""
        for event in self._slots.find_sent(now_s, session):
            self.apply(event, now_s)

    @property
    def sent_bytes(self) -> int:
        """Bytes of batches that were copied over sockets."""
        return self._router.counters.bytes_sent

    def counters(self) -> Counters:
        """Return all counters and gauges of this node process, by name."""
        status, table, cache = self._status, self._table, self._cache
        status.uptime_s = round(time.monotonic() - self._started_s, 3)
        status.sessions = len(table.sessions.open)
        status.slots_committed_bytes = table.sessions.used.slots_bytes
        status.slots_held_bytes = table.sessions.held_bytes
        if cache is not None:
            status.cache_entries, status.cache_used_bytes = cache.entries, cache.used_bytes
        status.datasets_stalled = len(table.watch.stalled)
        status.workers = len(self._pool.pids)
        return flatten(
            status,
            self._pool.record,
            table.counters,
            self._router.counters,
            self._claim_listener.counters,
            self._pool.counters,
            log_lines.counters,
        )

    def _carry_out(self, instruction: events.Instruction, now_s: float) -> events.Event | None:
        """Carry out an instruction; return the event that results from it, if any."""
        match instruction:
            case events.SendChunk():
                self._send_chunk(instruction, now_s)
            case Fill():
                self._pool.send(instruction.worker, instruction)
            case events.ReturnSlot(session, slot):
                return self._slots.want_back(session, slot, now_s)
            case events.Send(peer, message):
                self._sender.send(peer, message)
            case events.OpenSlots():
                return self._open_slots(instruction)
            case events.ShareSlots(session, connection):
                if not self._claim_listener.grant(connection, session, self._slots.memory(session)):
                    return events.HolderGone(session)
            case events.RefuseClaim(connection, reason):
                self._claim_listener.refuse(connection, reason)
            case events.CloseSlots(session):
                if self._open.pop(session, None) is not None:
                    self._pool.send_to_all(CloseSession(session=session))
                return self._slots.want_closed(session, now_s)
            case events.LogEnd():
                log_session_end(instruction, self._limits.lease_s)
            case events.LogSilence():
                log_silence(instruction, self._pool.pids.get(instruction.worker, 0))
            case events.LogProgress():
                log_progress(instruction, self._pool.pids.get(instruction.worker, 0))
            case events.KillWorker():
                self._pool.kill(instruction.worker, describe_stuck(instruction))
        return None

    def _send_chunk(self, sent: events.SendChunk, now_s: float) -> None:
        chunk = sent.chunk
        arrays = self._slots.chunk(chunk.session, sent.slot, chunk.first, chunk.images)
        tracker = self._sender.send_chunk(sent.peer, chunk, arrays)
        if tracker is not None:
            self._slots.lend(chunk.session, sent.slot, tracker, now_s)

    def _open_slots(self, wanted: events.OpenSlots) -> events.SlotsOpened | events.SlotsRefused:
        try:
            memory = self._slots.open(wanted.session, wanted.layout)
        except OSError as error:
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
            labels=wanted.layout.labels,
        )
        self._pool.send_to_all(message, memory.fileno())
        log_session_start(wanted, self._table.sessions.open[wanted.session].account)
        return events.SlotsOpened(wanted.session)
