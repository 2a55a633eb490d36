"""One link's conversation with its node, without socket, thread or clock.

    away ──connected──► greeting ──Welcome──► served ──Bye──►
      ▲                    ▲                    │
      └──connection lost── │ ◄──session unknown, silence, refused for the moment
                           │
      unfit ◄── an error that waiting cannot mend: until the connection is made anew

Between welcome and first request it settles how batches are handed over: if the node's slots can be
mapped here (the shell tries) they are lent in place, else copied over the socket.

All times are seconds on one monotonic clock, passed in by the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from feeder.client.core.events import ClaimSlots, DropClaim, Instruction, Send
from feeder.client.core.prefetch import HostBatch
from feeder.errors import ConfigError, DatasetError, FeederError, ProtocolError
from feeder.wire.claim import claim_path
from feeder.wire.messages import Bye, Hello, Ping, Refused, Welcome
from feeder.wire.slot_layout import SlotLayout

PING_INTERVAL_S: Final = 1.0  # far below any node's lease
QUIET_S: Final = 2.5  # a ping was not answered for a second and a half: ask another one
REDIAL_S: Final = 30.0  # after a refusal of our key, say, which libzmq takes for final
SILENCE_S: Final = 5.0  # the node may have lost the session: greet again
RETRY_INTERVAL_S: Final = 0.5  # between greetings while a node refuses for the moment
CLAIM_S: Final = 2.0  # a node answers a claim at once, or it is stopped or swamped


@dataclass(frozen=True, slots=True)
class SessionLost:
    """A session ended, and with it the requests to its node; ``memory_is_short`` says why."""

    memory_is_short: bool = False


class Conversation:
    """What is known of the node at the other end of a link, and what to tell it."""

    def __init__(self, link: int, endpoint: str, hello: Hello, *, share_memory: bool) -> None:
        """Begin away: nothing is said before the connection is up."""
        self.link = link
        self.endpoint = endpoint
        self.welcome: Welcome | None = None  # of the session, or of the one before
        self.unfit: FeederError | None = None
        self.twin: int | None = None  # another link to the same node process, which is used instead
        self.copied_because: str | None = None  # why batches are not lent, as far as is known
        self.slots: Sequence[HostBatch] = ()  # of this session, where they are mapped
        self._hello = hello
        self._door = claim_path(endpoint)
        if self._door is None:
            self.copied_because = "it is no ipc endpoint"
        elif not share_memory:
            self._door, self.copied_because = None, "share_memory is off"
        self.wants_slots = self._door is not None
        self._claim_by_s: float | None = None  # while it is not known whether slots can be mapped
        self._session: int | None = None
        self._is_draining = False
        self._out: list[Instruction] = []
        self._loss: SessionLost | None = None
        self._connected = False
        self._failed_attempts = 0
        self._refusal: str | None = None  # why the node does not serve us for the moment
        self._retry_at_s: float | None = None
        self._redial_at_s = float("inf")
        self._sign_at_s = 0.0  # when the node last spoke, or was greeted without an answer
        self._pinged_at_s = 0.0

    # --- What it stands for -------------------------------------------------------------------

    @property
    def session(self) -> int | None:
        """The session's number while there is one."""
        return self._session

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up."""
        return self._connected

    @property
    def is_served(self) -> bool:
        """Whether the node can be asked for batches now."""
        return self._session is not None and not self.awaits_slots and not self._is_draining

    @property
    def has_shown(self) -> bool:
        """Whether it is known if the node serves us: it does, does not, or is not there."""
        is_settled = self.welcome is not None or self.unfit is not None or self.twin is not None
        return is_settled or self._refusal is not None or self._failed_attempts > 0

    @property
    def awaits_slots(self) -> bool:
        """Whether it is not yet known if this session's slots can be mapped."""
        return self._claim_by_s is not None

    @property
    def window(self) -> int:
        """How many batches the node takes on at once."""
        if self.welcome is None or not self.is_served:
            return 0
        return min(self.welcome.window, self._hello.window)

    @property
    def chunk_images(self) -> int:
        """How many rows a chunk of the node has."""
        return 1 if self.welcome is None else self.welcome.chunk_images

    @property
    def node_name(self) -> str:
        """The node process's name, the same for all clients; the endpoint before it is known."""
        return self.endpoint if self.welcome is None else self.welcome.node

    @property
    def quiet_at_s(self) -> float:
        """From when on the node counts as quiet, if it says nothing until then."""
        return self._sign_at_s + QUIET_S

    def leads_to(self, welcome: Welcome) -> bool:
        """Whether this link serves us with the node process that sends ``welcome``."""
        known = self.welcome if self._session is not None else None
        return known is not None and known.incarnation == welcome.incarnation

    def is_to_be_redialled(self, now_s: float) -> bool:
        """Whether it is time to make an unfit link anew, which has no connection any more."""
        return self.unfit is not None and not self._connected and now_s >= self._redial_at_s

    def explain(self, now_s: float, progress: str) -> str:
        """Say in one clause why a wait is not over, given how far the next batch is."""
        if self.unfit is not None:
            return str(self.unfit)
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
        if self.twin is not None:
            return "it is the same node process as another endpoint"
        if self._session is None:
            return "it took the connection but does not answer the greeting; is it a feeder?"
        return f"it spoke {now_s - self._sign_at_s:.1f} s ago, but {progress}"

    # --- What the connection brings -----------------------------------------------------------

    def connected(self, now_s: float) -> None:
        """Note that the connection is up, and greet."""
        self._connected = True
        self._failed_attempts = 0
        self.unfit = None
        self.greet(now_s)

    def disconnected(self) -> None:
        """Note that the connection is lost, and the session with it."""
        self._connected = False
        self._session = None  # nobody there to say Bye to
        self._end_session()
        self._retry_at_s = None
        self._out = [out for out in self._out if not isinstance(out, Send)]

    def attempt_failed(self) -> None:
        """Count an attempt to connect that failed."""
        self._failed_attempts += 1

    def heard(self, now_s: float) -> None:
        """Note that the node has said something."""
        self._sign_at_s = now_s

    def accept(self, welcome: Welcome, now_s: float) -> None:
        """Begin the session that the node grants."""
        self._end_session()  # an earlier greeting was answered too: the last session counts
        self.welcome = welcome
        self._session = welcome.session
        self._retry_at_s = None
        if self._door is not None:
            layout = SlotLayout.of_recipe(self._hello.recipe, slots=welcome.window)
            self._out.append(ClaimSlots(self.link, welcome.session, self._door, layout))
            self._claim_by_s = now_s + CLAIM_S

    def decline(self, welcome: Welcome, twin: int) -> None:
        """Turn a session down: the node process serves us by another link."""
        self._end_session()
        self.twin = twin
        self._retry_at_s = None
        self._send(Bye(session=welcome.session))

    def leave(self, now_s: float, error: FeederError | None = None) -> None:
        """End the session, and with ``error`` have no other one on this connection."""
        self._end_session()
        self.unfit = error
        self._redial_at_s = now_s + REDIAL_S
        self._retry_at_s = None

    def drain(self) -> None:
        """Ask a node that is ending for nothing more; it still sends what it took on."""
        self._refusal = "it is shutting down"
        self._is_draining = True

    def refused(self, refused: Refused, now_s: float) -> FeederError | None:
        """Take in a refusal; return it as an error if waiting cannot mend it."""
        if refused.session is not None and refused.session != self._session:
            return None  # word of a session that is over
        match refused.code:
            case "unknown-session":
                if self._session is not None:
                    self._session = None  # nobody there to say Bye to
                    self.greet(now_s)
            case "draining" if refused.session is not None:  # our request and its word crossed
                self.drain()
            case "memory" | "clients" | "recipes" | "rate" | "draining":  # may be over in time
                self._end_session()
                if refused.code == "memory":
                    self._loss = SessionLost(memory_is_short=True)
                self._refusal = refused.message
                self._retry_at_s = now_s + RETRY_INTERVAL_S
            case "unknown-dataset":
                return DatasetError(refused.message)
            case "bad-recipe":
                return ConfigError(refused.message)
            case _:
                return ProtocolError(f"{refused.message} ({refused.code})")
        return None

    # --- How batches are handed over ----------------------------------------------------------

    def claimed(self, session: int, slots: Sequence[HostBatch]) -> bool:
        """Note that a session's slots are mapped; return whether that is news."""
        if session != self._session or not self.awaits_slots:
            return False
        self._claim_by_s, self.slots, self.copied_because = None, slots, None
        return True

    def not_shared(self, session: int, reason: str) -> bool:
        """Note that a session's slots cannot be mapped; the next session tries again."""
        if session != self._session or not self.awaits_slots:
            return False
        self._claim_by_s, self.copied_because = None, reason
        return True

    def describe_way(self) -> str:
        """Say in one line how batches come over this link."""
        if self.copied_because is None:
            text = f"{self.endpoint}: batches are read in place, in its slots"
        else:
            text = f"{self.endpoint}: batches are copied over the socket: {self.copied_because}"
        asked = self._hello.window
        if self.welcome is not None and self.welcome.window < asked:
            text += (
                f"; it grants {self.welcome.window} slots of the {asked} asked for, by its limits "
                "(window_max, slots_bytes, client_slots_bytes) and memory"
            )
        return text

    # --- Speaking -----------------------------------------------------------------------------

    def due_s(self) -> float:
        """Return when ``tick`` has something to do."""
        if self.unfit is not None and not self._connected:
            return self._redial_at_s
        if self.unfit is not None or self.twin is not None or not self._connected:
            return float("inf")
        if self._retry_at_s is not None:
            return self._retry_at_s
        silence_at_s = self._sign_at_s + SILENCE_S
        if self._session is None:
            return silence_at_s
        due_s = min(silence_at_s, max(self._sign_at_s, self._pinged_at_s) + PING_INTERVAL_S)
        return due_s if self._claim_by_s is None else min(due_s, self._claim_by_s)

    def tick(self, now_s: float) -> bool:
        """Do what is due: ping, or greet again after silence or a refusal for the moment.

        Returns whether it is news how batches come: the claim was not answered in time.
        """
        if self.unfit is not None or now_s < self.due_s():
            return False
        if self._session is None or now_s >= self._sign_at_s + SILENCE_S:
            self.greet(now_s)
        elif self._claim_by_s is not None and now_s >= self._claim_by_s:
            self._door = None  # a late grant of the next claim too would end that session
            self._out.append(DropClaim(self.link))
            return self.not_shared(self._session, f"no answer to the claim within {CLAIM_S:g} s")
        else:
            self._pinged_at_s = now_s
            self._send(Ping(session=self._session))
        return False

    def greet(self, now_s: float) -> None:
        """Ask for a session, and end the one there is.

        A refusal stays the explanation until the retry is answered or has met silence.
        """
        refusal = None if self._retry_at_s is None else self._refusal
        self._end_session()
        self._refusal, self._retry_at_s = refusal, None
        self._sign_at_s = self._pinged_at_s = now_s
        self._send(self._hello)

    def take_instructions(self) -> list[Instruction]:
        """Return what is to be done now."""
        out, self._out = self._out, []
        return out

    def take_loss(self) -> SessionLost | None:
        """Return the loss of a session, once: its batches must be requested again."""
        loss, self._loss = self._loss, None
        return loss

    def _end_session(self) -> None:
        if self._session is not None:  # harmless where the node lost it too
            self._send(Bye(session=self._session))
        if self.awaits_slots:
            self._out.append(DropClaim(self.link))
        self._session = None
        self.twin = None
        self._is_draining = False
        self._refusal = None
        self._claim_by_s = None
        self.slots = ()  # those with a batch in them that is not yet consumed stay mapped
        self._loss = self._loss or SessionLost()

    def _send(self, message: Hello | Ping | Bye) -> None:
        self._out.append(Send(self.link, message))
