"""Random interleavings of all events of sessions; the shell checks every instruction."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feeder.metrics.hangs import KernelState
from feeder.session.admission import Usage
from feeder.session.events import PeerGone, Resumed, SlotSent
from tests.support.session_shell import ROWS, Shell

_PEERS = [b"a", b"b", b"c", b"d"]
_KEYS = st.tuples(st.integers(0, 1), st.integers(0, 13))
_SAMPLED = st.integers(0, 2**16)
_STATES: tuple[KernelState, ...] = ("runs", "sleeps", "storage", "stopped", "traced")


class Interleavings(RuleBasedStateMachine):
    """Clients, workers, socket and clock in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell(datasets=("d", "e"), cached=("e",))
        self.held: list[int] = []

    @rule(
        peer=st.sampled_from(_PEERS),
        window=st.integers(1, 6),
        dataset=st.sampled_from(["d", "e"]),
        job=st.sampled_from(["", "x"]),
        account=st.sampled_from(["alice", "bob"]),
    )
    def hello(self, peer: bytes, window: int, dataset: str, job: str, account: str) -> None:
        self.shell.hello(peer, window=window, dataset=dataset, job=job, account=account)

    @precondition(lambda self: self.shell.clients)
    @rule(pick=_SAMPLED, want=st.lists(_KEYS, max_size=5), releases=st.integers(0, 4))
    def request(self, pick: int, want: list[tuple[int, int]], releases: int) -> None:
        peer = self._pick_peer(pick)
        wanted = list(self.shell.clients[peer].wanted)
        self.shell.request(peer, want, wanted[:releases])

    @precondition(lambda self: self.shell.clients)
    @rule(pick=_SAMPLED)
    def release_finished_and_want_more(self, pick: int) -> None:
        peer = self._pick_peer(pick)
        view = self.shell.clients[peer]
        finished = [key for key, wanted in view.wanted.items() if wanted.sent == ROWS]
        room = view.window - len(view.wanted) + len(finished)
        fresh = [(epoch, i) for epoch in (0, 1) for i in range(view.batches)]
        more = [key for key in fresh if key not in view.wanted][:room]
        self.shell.request(peer, more, finished)

    @precondition(lambda self: self.shell.clients)
    @rule(pick=_SAMPLED)
    def claim_slots(self, pick: int) -> None:
        view = self.shell.clients[self._pick_peer(pick)]
        first = view.session not in self.shell.mapped and not view.has_requested
        assert self.shell.claim(view.session) == first

    @rule(peer=st.sampled_from(_PEERS), window=st.integers(1, 6))
    def hello_and_claim_slots(self, peer: bytes, window: int) -> None:
        self.shell.hello(peer, window=window)
        if peer in self.shell.clients:
            assert self.shell.claim(self.shell.clients[peer].session)

    @precondition(lambda self: self.shell.mapped)
    @rule(pick=_SAMPLED)
    def unmap_slots(self, pick: int) -> None:
        sessions = list(self.shell.mapped)
        self.shell.unmap(sessions[pick % len(sessions)])

    @precondition(lambda self: self.shell.clients)
    @rule(pick=_SAMPLED)
    def ping(self, pick: int) -> None:
        self.shell.ping(self._pick_peer(pick))

    @precondition(lambda self: self.shell.clients)
    @rule(pick=_SAMPLED)
    def bye(self, pick: int) -> None:
        self.shell.bye(self._pick_peer(pick))

    @precondition(lambda self: self.shell.clients)
    @rule(pick=_SAMPLED)
    def peer_gone(self, pick: int) -> None:
        peer = self._pick_peer(pick)
        del self.shell.clients[peer]
        self.shell.apply(PeerGone(peer))

    @precondition(lambda self: len(self.shell.workers) < 4)
    @rule()
    def join(self) -> None:
        self.shell.join()

    @precondition(lambda self: self.shell.workers)
    @rule(pick=_SAMPLED, was_killed=st.booleans())
    def lose(self, pick: int, was_killed: bool) -> None:
        workers = list(self.shell.workers)
        self.shell.lose(workers[pick % len(workers)], was_killed=was_killed)

    @precondition(lambda self: set(self.shell.killed) & set(self.shell.workers))
    @rule(is_held=st.booleans())
    def lose_a_stuck_worker(self, is_held: bool) -> None:
        worker = next(worker for worker in self.shell.killed if worker in self.shell.workers)
        self.shell.lose(worker, was_killed=True, is_held=is_held)
        if is_held:
            self.held.append(worker)

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        self.shell.release(self.held.pop())

    @precondition(lambda self: self.shell.workers)
    @rule(seconds=st.sampled_from([5.0, 30.0, 45.0]))
    def no_worker_makes_progress(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            for peer in self.shell.clients:
                self.shell.ping(peer)
            self.shell.advance(1.0)

    @precondition(lambda self: self.shell.workers)
    @rule(pick=_SAMPLED, state=st.sampled_from(_STATES), share=st.sampled_from([0.0, 0.1, 1.0]))
    def a_process_changes(self, pick: int, state: KernelState, share: float) -> None:
        workers = list(self.shell.workers)
        share = share if state in ("runs", "storage") else 0.0
        self.shell.states[workers[pick % len(workers)]] = state, share

    @rule(seconds=st.sampled_from([0.6, 8.0, 100.0]))
    def the_daemon_is_suspended(self, seconds: float) -> None:
        killed = len(self.shell.kills)
        self.shell.now_s += seconds
        self.shell.apply(Resumed())
        assert len(self.shell.kills) == killed

    @rule(seconds=st.sampled_from([2.5, 3.5, 8.0]))
    def workers_are_watched(self, seconds: float) -> None:
        stalled = len(self.shell.table.watch.stalled)
        kills = len(self.shell.kills)
        for peer in self.shell.clients:
            self.shell.ping(peer)
        self.shell.wait(seconds)
        conditions = {kill.condition for kill in self.shell.kills[kills:]}
        if conditions <= {"stopped", "looping", "starved"}:
            assert len(self.shell.table.watch.stalled) <= stalled, "no storage was waited for"
        self._forget_expired()

    @precondition(lambda self: self.shell.fills)
    @rule(pick=_SAMPLED, fails=st.booleans())
    def finish_chunk(self, pick: int, fails: bool) -> None:
        busy = [worker for worker, tickets in self.shell.workers.items() if tickets]
        worker = busy[pick % len(busy)]
        if fails and pick % 7 == 0:
            self.shell.fail(worker)
        else:
            self.shell.fill(worker)

    @precondition(lambda self: self.shell.is_fetching)
    @rule(pick=_SAMPLED, fails=st.booleans())
    def samples_are_fetched(self, pick: int, fails: bool) -> None:
        coming = len(self.shell.fetches.keys() - self.shell.there)
        self.shell.fetched(pick % coming, "the store is away" if fails and pick % 5 == 0 else "")

    @precondition(lambda self: self.shell.checks)
    @rule(pick=_SAMPLED, fails=st.booleans())
    def samples_are_checked(self, pick: int, fails: bool) -> None:
        problem = "the store is away" if fails and pick % 5 == 0 else ""
        self.shell.checked(pick % len(self.shell.checks), problem)

    @precondition(lambda self: self.shell.returning)
    @rule(pick=_SAMPLED)
    def return_slot(self, pick: int) -> None:
        self.shell.return_slot(pick % len(self.shell.returning))

    @precondition(lambda self: self.shell.clients)
    @rule(pick=_SAMPLED)
    def slots_are_sent(self, pick: int) -> None:
        view = self.shell.clients[self._pick_peer(pick)]
        for slot in range(view.window):
            self.shell.apply(SlotSent(view.session, slot, self.shell.now_s))

    @precondition(lambda self: self.shell.closing)
    @rule(pick=_SAMPLED)
    def close_slots(self, pick: int) -> None:
        self.shell.close_slots(pick % len(self.shell.closing))

    @rule(seconds=st.floats(0, 6))
    def advance(self, seconds: float) -> None:
        expired = self.shell.counters.sessions_expired
        self.shell.advance(seconds)
        if self.shell.counters.sessions_expired > expired:
            self._forget_expired()

    @invariant()
    def an_idle_table_has_answered_everything(self) -> None:
        if not self.shell.table.is_idle:
            return
        for view in self.shell.clients.values():
            for wanted in view.wanted.values():
                assert wanted.failed or wanted.sent == ROWS

    def teardown(self) -> None:
        """With a live worker, every wanted batch is answered in the end."""
        while self.held:
            self.release()
        self.shell.join()
        self.shell.finish()
        assert self.shell.table.is_idle
        self.an_idle_table_has_answered_everything()
        for peer in list(self.shell.clients):
            self.shell.bye(peer)
        for session in list(self.shell.mapped):
            self.shell.unmap(session)
        self.shell.finish()
        assert self.shell.table.sessions.used == Usage()
        assert not self.shell.table.sessions._used_by_account, "nothing is kept of gone clients"
        assert not any(job.sessions for job in self.shell.table.jobs.records)
        jobs = self.shell.table.jobs
        assert not jobs.ready, "no job wants anything"
        assert not any(job.ready or job.unfinished for job in jobs._active)
        assert not self.shell.open
        assert not self.shell.fetches, "all samples are let go"

    def _pick_peer(self, pick: int) -> bytes:
        peers = list(self.shell.clients)
        return peers[pick % len(peers)]

    def _forget_expired(self) -> None:
        """A client whose lease has expired gets a refusal for its next message."""
        for peer, view in list(self.shell.clients.items()):
            self.shell.inbox.clear()
            self.shell.ping(peer)
            if "unknown-session" in self.shell.refusals():
                assert view.session not in self.shell.table.sessions.open
                del self.shell.clients[peer]


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, phases=(Phase.reuse, Phase.generate)
)  # no shrinking: it takes longer than reading the steps
