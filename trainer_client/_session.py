"""The client's conversation with a node, without socket, thread or clock: events in, messages out.

    away ──connected──► greeting ──Welcome──► served ──Bye──►
      ▲                    ▲                    │
      └──connection lost── │ ◄──session unknown, silence, refused for the moment
                           └── an error that waiting cannot mend ──► failed (for good)

Between welcome and first request it settles how batches are handed over: if the node's slots can be
mapped here (the shell tries, see ``_lent``) they are lent in place, else copied over the socket.

A node that restarts is greeted again and asked for all that is not complete; ``_prefetch`` sees to
it that nothing is repeated or skipped. How long the consumer has patience is not decided here: it
waits until its own deadline and then asks ``explain`` for the reason.

All times are seconds on one monotonic clock, passed in by the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from feeder.errors import ConfigError, DatasetError, FeederError, PeerError, ProtocolError
from feeder.slot_claim import door_path
from feeder.slot_layout import SlotLayout
from feeder.wire import (
    Bye,
    Chunk,
    ClientMessage,
    Draining,
    Failed,
    Hello,
    Lent,
    NodeMessage,
    Ping,
    Refused,
    Request,
    Welcome,
)
from trainer_client._batch import HostBatch
from trainer_client._prefetch import CompleteBatch, Placement, Prefetch

PING_INTERVAL_S: Final = 1.0  # far below any node's lease
SILENCE_S: Final = 5.0  # five unanswered pings: greet again, the node may have lost the session
RETRY_INTERVAL_S: Final = 0.5  # between greetings while a node refuses for the moment
CLAIM_S: Final = 2.0  # a node answers a claim at once, or it is stopped or swamped


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the client asks of a node; the same for the whole life of the client."""

    endpoint: str
    hello: Hello
    share_memory: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSlots:
    """A session's slots, to be claimed at ``door``."""

    session: int
    door: str
    layout: SlotLayout


class ClientSession:
    """The state machine. Not thread-safe: the caller holds a lock around every call.

    ``error`` is set once something happened that waiting cannot mend.
    """

    def __init__(self, job: Job, prefetch: Prefetch) -> None:
        self.job = job
        self.welcome: Welcome | None = None  # the first one; later ones must agree with it
        self.error: FeederError | None = None
        self.welcomes = 0
        self.received_bytes = 0
        self.first_batch_s: float | None = None  # from the first request to the first whole batch
        self.copied_because: str | None = None  # why batches are not lent, as far as is known
        self._prefetch = prefetch
        self._door = door_path(job.endpoint)
        if self._door is None:
            self.copied_because = "it is no ipc endpoint"
        elif not job.share_memory:
            self._door, self.copied_because = None, "share_memory is off"
        self._claim: WantedSlots | None = None  # to be made
        self._claim_by_s: float | None = None  # while it is not known whether slots can be mapped
        self._slots: Sequence[HostBatch] = ()  # of this session, where they are mapped
        self._session: int | None = None
        self._chunk_images = 1
        self._window = 0
        self._outbox: list[ClientMessage] = []
        self._connected = False
        self._failed_attempts = 0
        self._refusal: str | None = None  # why the node does not serve us for the moment
        self._retry_at_s: float | None = None
        self._sign_at_s = 0.0  # when the node last spoke, or was greeted without an answer
        self._spoke_at_s = 0.0
        self._first_request_at_s: float | None = None

    # What the consumer does

    def begin(self, epoch: int, step: int = 0) -> None:
        """Start over at a step of an epoch; what is already there of it is kept."""
        self._prefetch.begin(epoch, self.check().batches, step)

    def is_next_complete(self) -> bool:
        """Return whether ``take`` would give a batch, or the reason why it cannot be had."""
        return self.error is not None or self._prefetch.is_next_settled

    def take(self) -> CompleteBatch | None:
        """Return the next batch if it is complete. Raises what stands in its way for good."""
        self.check()
        try:
            return self._prefetch.take()
        except DatasetError as error:
            raise DatasetError(self._say(str(error))) from None

    def give_back(self, buffer: int) -> None:
        """Let the buffer of a batch that was taken be written again."""
        self._prefetch.give_back(buffer)

    def check(self) -> Welcome:
        """Return the first welcome; raises the error that ended the session."""
        if self.error is not None:
            raise type(self.error)(str(self.error)) from self.error
        if self.welcome is None:
            raise PeerError(self._say("there was no welcome yet"))
        return self.welcome

    def explain(self, now_s: float) -> str:
        """Say in one clause why a wait is not over."""
        if not self._connected and self.welcome is None:
            return (
                f"nobody answers there ({self._failed_attempts} attempts to connect failed); "
                "start `feeder serve` or correct the endpoint"
            )
        if not self._connected:
            return (
                f"the connection is lost, {self._failed_attempts} attempts to restore it failed; "
                "is the daemon still running?"
            )
        if self._refusal is not None:
            return f"it refuses for the moment: {self._refusal}"
        if self._session is None:
            return "it took the connection but does not answer the greeting; is it a feeder?"
        silence_s = now_s - self._sign_at_s
        return f"it spoke {silence_s:.1f} s ago, but {self._prefetch.progress()}"

    # What the connection brings

    def connected(self, now_s: float) -> None:
        """Note that the connection is up, and greet."""
        self._connected = True
        self._failed_attempts = 0
        self._greet(now_s)

    def disconnected(self) -> None:
        """Note that the connection is lost, and the session with it."""
        self._connected = False
        self._lose_session()
        self._outbox.clear()

    def attempt_failed(self) -> None:
        """Count an attempt to connect that failed."""
        self._failed_attempts += 1

    def heard(self, message: NodeMessage, now_s: float) -> None:
        """Take in any message but a chunk."""
        self._sign_at_s = now_s
        match message:
            case Welcome():
                self._accept_welcome(message, now_s)
            case Refused():
                self._accept_refusal(message, now_s)
            case Lent() if message.session == self._session:
                self._accept_lent(message, now_s)
            case Failed() if message.session == self._session:
                key = (message.epoch, message.index)
                self._prefetch.failed(key, f"{message.message} ({message.code})")
            case Draining() if message.session == self._session:
                self._drain()
            case _:  # the answer to a ping, or word of a session that is over
                pass

    def place(self, chunk: Chunk, sizes: Sequence[int], now_s: float) -> Placement | None:
        """Return where a chunk with frames of ``sizes`` bytes belongs, None when nobody wants it.

        Raises ProtocolError when it is not what a chunk of its batch must look like.
        """
        self._sign_at_s = now_s
        self.received_bytes += sum(sizes)
        if chunk.session != self._session:
            self._prefetch.chunks_discarded += 1
            return None
        try:
            return self._prefetch.place(chunk, sizes, self._chunk_images)
        except ProtocolError as error:
            raise ProtocolError(self._say(str(error))) from None

    def stored(self, placement: Placement, now_s: float) -> None:
        """Note that the rows of a chunk that was placed are in their buffer."""
        self._prefetch.stored(placement)
        self._note_first_batch(now_s)

    # How batches are handed over

    @property
    def awaits_slots(self) -> bool:
        """Whether it is not yet known if this session's slots can be mapped."""
        return self._claim_by_s is not None

    @property
    def wants_slots(self) -> bool:
        """Whether batches are to be lent in place where that is possible."""
        return door_path(self.job.endpoint) is not None and self.job.share_memory

    @property
    def slots_mapped(self) -> int:
        """How many slots this session has mapped; 0 where batches are copied."""
        return len(self._slots)

    def take_claim(self) -> WantedSlots | None:
        """Return, once, the slots that the shell shall claim."""
        claim, self._claim = self._claim, None
        return claim

    def claimed(self, session: int, slots: Sequence[HostBatch]) -> None:
        """Note that a session's slots are mapped."""
        if session == self._session and self.awaits_slots:
            self._claim_by_s, self._slots, self.copied_because = None, slots, None

    def not_shared(self, session: int, reason: str) -> None:
        """Note that a session's slots cannot be mapped; the next session tries again."""
        if session == self._session and self.awaits_slots:
            self._claim_by_s, self._claim, self.copied_because = None, None, reason

    def fail(self, error: FeederError) -> None:
        """End for good; the consumer's calls raise the first such error from now on."""
        if self.error is None:
            self.error = error

    # What time brings

    def due_s(self) -> float:
        """Return when ``tick`` has something to do."""
        if self.error is not None or not self._connected:
            return float("inf")
        if self._retry_at_s is not None:
            return self._retry_at_s
        silence_at_s = self._sign_at_s + SILENCE_S
        if self._session is None:
            return silence_at_s
        due_s = min(silence_at_s, self._spoke_at_s + PING_INTERVAL_S)
        return due_s if self._claim_by_s is None else min(due_s, self._claim_by_s)

    def tick(self, now_s: float) -> None:
        """Do what is due: ping, or greet again after silence or a refusal for the moment."""
        if now_s < self.due_s():
            return
        if self._session is not None and self._claim_by_s is not None and now_s > self._claim_by_s:
            self.not_shared(self._session, f"no answer to the claim within {CLAIM_S:g} s")
            self._door = None  # a late grant of the next claim too would end that session
        elif self._session is None or now_s >= self._sign_at_s + SILENCE_S:
            self._greet(now_s)
        else:
            self._outbox.append(Ping(session=self._session))

    def drain(self, now_s: float) -> list[ClientMessage]:
        """Return the messages to send now, requests for all that there is room for among them."""
        if self.error is not None or not self._connected:
            return []
        messages, self._outbox = self._outbox, []
        if self._session is not None and self.welcome is not None and not self.awaits_slots:
            wants = self._prefetch.want(self._window, self.welcome.samples, self._chunk_images)
            releases = self._prefetch.take_releases()
            if wants and self._first_request_at_s is None:
                self._first_request_at_s = now_s
            if wants or releases:
                messages.append(
                    Request(
                        session=self._session,
                        number=self._prefetch.request,
                        want=tuple(wants),
                        release=tuple(releases),
                    )
                )
        if messages:
            self._spoke_at_s = now_s
        return messages

    def farewell(self) -> list[ClientMessage]:
        """Return the last message: the node then need not wait for the lease to end."""
        return [] if self._session is None else [Bye(session=self._session)]

    def let_go(self) -> None:
        """Let go of slots, those with a batch included; nothing is taken any more after this."""
        self._slots = ()
        self._prefetch.drop_held()

    # Inside

    def _note_first_batch(self, now_s: float) -> None:
        asked_at_s = self._first_request_at_s
        if self.first_batch_s is None and asked_at_s is not None and self._prefetch.completed:
            self.first_batch_s = now_s - asked_at_s

    def _say(self, what: str) -> str:
        return f"{self.job.endpoint}: {what}"

    def _greet(self, now_s: float) -> None:
        self._lose_session()
        self._retry_at_s = None
        self._sign_at_s = now_s
        self._outbox.append(self.job.hello)

    def _lose_session(self) -> None:
        if self._session is not None:  # harmless where the node lost it too
            self._outbox.append(Bye(session=self._session))
        self._session = None
        self._refusal = None
        self._claim = self._claim_by_s = None
        self._slots = ()  # those with a batch in them that is not yet consumed stay mapped
        self._prefetch.forget_requests()

    def _drain(self) -> None:
        """Ask a node that is ending for nothing more; it still sends what it took on."""
        self._refusal = "it is shutting down"
        self._window = 0

    def _accept_lent(self, lent: Lent, now_s: float) -> None:
        if lent.slot >= len(self._slots):
            raise ProtocolError(
                self._say(f"slot {lent.slot} was lent, {len(self._slots)} are mapped here")
            )
        try:
            self._prefetch.lend(lent, self._slots[lent.slot])
        except ProtocolError as error:
            raise ProtocolError(self._say(str(error))) from None
        self._note_first_batch(now_s)

    def _accept_welcome(self, welcome: Welcome, now_s: float) -> None:
        if welcome.session == self._session:
            return
        self._check_welcome(welcome)
        self._lose_session()  # an earlier greeting was answered too: the last session counts
        self.welcome = self.welcome or welcome
        self.welcomes += 1
        self._session = welcome.session
        self._chunk_images = welcome.chunk_images
        self._window = min(welcome.window, self.job.hello.window)
        self._refusal = None
        self._retry_at_s = None
        if self._door is not None:
            layout = SlotLayout.of_recipe(self.job.hello.recipe, slots=welcome.window)
            self._claim = WantedSlots(session=welcome.session, door=self._door, layout=layout)
            self._claim_by_s = now_s + CLAIM_S

    def _check_welcome(self, welcome: Welcome) -> None:
        ours, theirs = self.job.hello.recipe.fingerprint(), welcome.recipe_fingerprint
        if ours != theirs:
            raise ProtocolError(
                self._say(
                    f"feeder {welcome.feeder_version} there understands the recipe differently "
                    f"({theirs}, here {ours}); install the same version on both sides"
                )
            )
        if self.welcome is not None and welcome.fingerprint != self.welcome.fingerprint:
            raise DatasetError(
                self._say(
                    f"dataset {self.job.hello.dataset!r} changed while the daemon restarted: its "
                    f"fingerprint is {welcome.fingerprint}, it was {self.welcome.fingerprint}; "
                    "serve the old one or restart the job"
                )
            )

    def _accept_refusal(self, refused: Refused, now_s: float) -> None:
        if refused.session is not None and refused.session != self._session:
            return  # word of a session that is over
        reason = self._say(refused.message)
        match refused.code:
            case "unknown-session":
                if self._session is not None:
                    self._session = None  # nobody there to say Bye to
                    self._greet(now_s)
            case "draining" if refused.session is not None:  # our request and its word crossed
                self._drain()
            case "memory" | "clients" | "draining":  # may be over before the consumer's deadline
                self._lose_session()
                self._refusal = refused.message
                self._retry_at_s = now_s + RETRY_INTERVAL_S
            case "unknown-dataset":
                self.fail(DatasetError(reason))
            case "bad-recipe":
                self.fail(ConfigError(reason))
            case _:
                self.fail(ProtocolError(f"{reason} ({refused.code})"))
