"""The state of one link to a node, without socket, thread or clock.

    away ──connected──► greeting ──Welcome──► served ──Bye──►
      ▲                    ▲                    │
      └──connection lost── │ ◄──session unknown, silence, temporary refusal

Between welcome and first request it settles how batches are transferred: if the node's slots can be
mapped here (the shell tries) they are lent in place, else copied over the socket.

Invariant: when a session ends, for whatever reason, its requests are open again in ``prefetch``.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from feeder.client.core import events
from feeder.client.core.prefetch import HostBatch, Prefetch
from feeder.errors import ConfigError, DatasetError, ProtocolError
from feeder.wire.claim import claim_path
from feeder.wire.messages import Bye, Hello, NotReady, Ping, Refused, Welcome
from feeder.wire.session_id import session_id
from feeder.wire.slot_layout import SlotLayout

PING_INTERVAL_S: Final = 1.0  # far below any node's lease
QUIET_S: Final = 2.5  # a ping has had no answer for a second and a half: ask another node
SILENCE_S: Final = 5.0  # the node may have lost the session: greet again
RETRY_INTERVAL_S: Final = 0.5  # between greetings while a node refuses temporarily
STANDSTILL_S: Final = 5.0  # a packing without progress for so long is reported as one


class LinkState:
    """What is known of the node at the other end of a link, and what to send to it."""

    def __init__(
        self,
        number: int,
        endpoint: str,
        feeder: str,
        hello: Hello,
        prefetch: Prefetch,
        out: list[events.Instruction],
        *,
        share_memory: bool,
    ) -> None:
        """Begin away: nothing is sent before the connection is up."""
        self.number = number
        self.endpoint = endpoint
        self.feeder = feeder  # the name of the list's line that led here
        self.owner = endpoint  # the name by which the node process owns lanes
        self.is_connected = False
        self.session: int | None = None
        self.welcome: Welcome | None = None  # of the session, or of the one before
        self.node_name = endpoint  # the node process's, the same for all clients, once it is known
        self.is_served = False  # whether batches can be requested now
        self.slots: Sequence[HostBatch] = ()  # of this session, where they are mapped
        self.copied_because: str | None = None  # why batches are not lent, as far as is known
        self.duplicate_of: int | None = None  # the link in use to the same node process
        self.due_s = inf  # when to call ``run_due``
        self.heard_s = 0.0  # the node's last message
        self.sharers: int | None = None  # sessions of this job there, from its Pongs
        self.verdict = ""  # on what sets the node's pace, from its Pongs
        self.store = ""  # where batches of this session wait for samples from
        self.waited_s = 0.0  # how long the training loop has waited for this session
        self._hello = hello
        self._prefetch = prefetch
        self._out = out
        self._claim_path = claim_path(endpoint)
        if self._claim_path is None:
            self.copied_because = "it is no ipc endpoint"
        elif not share_memory:
            self._claim_path, self.copied_because = None, "share_memory is off"
        self._failed_attempts = 0  # to connect, or to be answered
        self._refusal: str | None = None  # why the node refuses temporarily
        self._packing: str | None = None  # what the node reports while it packs
        self._advances = 0  # the most that it has reported
        self._advanced_s = 0.0  # when that was
        self._began_s = self._cpu_before_s = 0.0  # at the session's start

    @property
    def is_status_known(self) -> bool:
        """Whether it is known if the node serves this job: it does, does not, or is not there."""
        return bool(self.welcome or self._refusal is not None or self._failed_attempts)

    @property
    def is_away(self) -> bool:
        """Whether it is known that no batches can be requested now; a new link is not away."""
        return not self.is_served and self.duplicate_of is None and self.is_status_known

    def explain(self, now_s: float, progress: str) -> str:
        """Why a wait is not over, as one clause; ``progress`` is the next batch's."""
        if self._packing is not None and self.is_connected:
            still_s = now_s - self._advanced_s
            still = f", and has not advanced for {still_s:.0f} s" if still_s >= STANDSTILL_S else ""
            return f"it is {self._packing}{still}"
        if not self.is_connected:
            if self.welcome is None and self._packing is None:
                return (
                    f"nothing answers there ({self._failed_attempts} attempts to connect failed); "
                    "start `feeder serve` or correct the endpoint"
                )
            return (
                f"the connection is lost, {self._failed_attempts} attempts to restore it failed; "
                "is the daemon still running?"
            )
        if self.welcome is not None and self.duplicate_of is None and self._is_silent(now_s):
            network = "" if self.endpoint.startswith("ipc://") else "the network hangs, or "
            return (
                f"no byte came from it for {now_s - self.heard_s:.1f} s, and pings have no answer: "
                f"{network}its node process is stopped or gets no CPU time"
            )
        if self._refusal is not None:
            return f"it refuses for the moment: {self._refusal}"
        if self.duplicate_of is not None:
            return "it is the same node process as another endpoint"
        if self.session is None:
            return "it accepted the connection but does not answer the greeting; is it a feeder?"
        waits = f": batches wait for samples from {self.store}" if self.store else ""
        return f"its last message came {now_s - self.heard_s:.1f} s ago, but {progress}{waits}"

    def find_trouble(self, now_s: float) -> str:
        """What keeps a node that has served from answering, as a verdict; "" if it does."""
        if self.welcome is None or self.duplicate_of is not None:
            return ""
        if not self.is_connected:
            kind = "lost-connection"
        elif self._is_silent(now_s):
            kind = "silent-node" if self.endpoint.startswith("ipc://") else "hung-network"
        else:
            return ""
        return f"{kind}: {self.endpoint}: {self.explain(now_s, '')}"

    def _is_silent(self, now_s: float) -> bool:
        return now_s >= self.heard_s + QUIET_S  # at least one ping had no answer

    # --- Events of the connection, and messages ------------------------------------------------

    def handle(self, event: events.Event, now_s: float) -> None:
        """Handle an event of the connection or of the claim."""
        match event:
            case events.Connected():
                self.is_connected, self._failed_attempts = True, 0
                self.greet(now_s)
            case events.Disconnected() if self.is_connected:
                self.is_connected, self._failed_attempts = False, 0
                self._log_loss("its connection has ended")
                self.session = None  # no Bye can reach the node
                self.leave()
            case events.Disconnected():
                self._failed_attempts += 1
            case events.ClaimAnswered(_, session, slots, refusal) if session == self.session:
                self._settle_transfer(refusal, slots)

    def begin(self, welcome: Welcome) -> None:
        """Begin the session that the node grants: ``accept`` or ``leave`` follows."""
        self._end_session()  # an earlier greeting was answered too: the last session counts
        self._packing = self.sharers = None
        self.welcome, self.node_name, self.session = welcome, welcome.node, welcome.session

    def accept(self, welcome: Welcome, now_s: float, cpu_s: float) -> None:
        """Use the session; ``cpu_s`` is this process's CPU time so far."""
        self._began_s, self._cpu_before_s, self.waited_s = now_s, cpu_s, 0.0
        self.due_s = now_s + PING_INTERVAL_S
        path, recipe = self._claim_path, self._hello.recipe
        if path is None:
            self._settle_transfer(self.copied_because)
            return
        layout = SlotLayout.of_recipe(recipe, welcome.labels, slots=welcome.window)
        self._out.append(events.ClaimSlots(self.number, welcome.session, path, layout))

    def leave(self) -> None:
        """End the session, and wait for another connection."""
        self._end_session()
        self.due_s = inf

    def drain(self) -> None:
        """Request nothing more from a node that is ending; it still sends what is in flight."""
        self._refusal = "it is shutting down"
        self.is_served = False

    def on_not_ready(self, message: NotReady, now_s: float) -> bool:
        """Greet again soon, as the daemon packs; return whether its packing has advanced."""
        self._refusal, self.due_s = message.text, now_s + RETRY_INTERVAL_S
        if self._packing is None:
            self._advances = -1
            self._log(f" is {message.text}: waiting", is_warning=True)
        self._packing = message.text
        # Also after a restart: a packing that keeps failing must not be waited for forever.
        if message.advances <= self._advances:
            return False
        self._advances, self._advanced_s = message.advances, now_s
        return True

    def on_refused(self, refused: Refused, now_s: float) -> None:
        """Handle a refusal; raise it as an error if waiting cannot mend it."""
        if refused.session is not None and refused.session != self.session:
            return  # of a session that is over
        self._packing = None
        match refused.code:
            case "unknown-session":
                if self.session is not None:
                    self._log_loss("the node does not know it")
                    self.session = None  # the node knows of none to end
                    self.greet(now_s)
            case "draining" if refused.session is not None:  # it crossed our request
                self.drain()
            case "dataset" | "memory" | "clients" | "recipes" | "rate" | "draining":  # may be over
                self._end_session()
                self._refusal, self.due_s = refused.message, now_s + RETRY_INTERVAL_S
            case "unknown-dataset":
                raise DatasetError(refused.message)
            case "bad-recipe":
                raise ConfigError(refused.message)
            case "version" if newer := self._hello.recipe.newer_fields:
                raise ProtocolError(
                    f"{refused.message}, or leave {' and '.join(newer)} out of the recipe, which "
                    "that feeder is too old for"
                )
            case _:
                raise ProtocolError(f"{refused.message} ({refused.code})")

    def run_due(self, now_s: float, cpu_s: float) -> None:
        """Do what is due: ping, or greet again after silence or a temporary refusal."""
        is_silent = now_s >= self.heard_s + SILENCE_S
        if self.session is None or is_silent:
            refusal = None if is_silent else self._refusal  # until the node answers otherwise
            self._failed_attempts += is_silent
            self._log_loss(f"its node was silent for {SILENCE_S:g} s")
            self.greet(now_s)
            self._refusal = refusal
            return
        self.due_s = now_s + PING_INTERVAL_S  # also while batches come: pings report the waits
        clock_s, spent_s = now_s - self._began_s, cpu_s - self._cpu_before_s
        ping = Ping(session=self.session, clock_s=clock_s, waited_s=self.waited_s, cpu_s=spent_s)
        self._out.append(events.Send(self.number, ping))

    def greet(self, now_s: float) -> None:
        """Request a session, and end the present one."""
        self._end_session()
        self.due_s = now_s + SILENCE_S
        self._out.append(events.Send(self.number, self._hello))

    def _settle_transfer(self, copied_because: str | None, slots: Sequence[HostBatch] = ()) -> None:
        # If the slots of this session are not mapped, the next session claims its own again.
        self.copied_because, self.slots, self.is_served = copied_because, slots, True
        text = ": batches are read in place, in its slots"
        if copied_because is not None:
            text = f": batches are copied over the socket: {copied_because}"
        requested = self._hello.window
        if self.welcome is not None and self.welcome.window < requested:
            text += (
                f"; it grants {self.welcome.window} slots of the {requested} requested, by its "
                "limits (window_max, slots_bytes, client_slots_bytes) and memory"
            )
        is_warning = self._claim_path is not None and copied_because is not None
        self._log(text + name_session(self.welcome), is_warning=is_warning)

    def _log_loss(self, reason: str) -> None:
        if self.session is not None:  # another one follows where possible
            self._log(f": the session is lost: {reason}{name_session(self.welcome)}")

    def _log(self, text: str, *, is_warning: bool = False) -> None:
        self._out.append(events.Log(self.endpoint + text, is_warning=is_warning))

    def _end_session(self) -> None:
        if self.session is not None:  # harmless where the node lost it too
            self._out.append(events.Send(self.number, Bye(session=self.session)))
        self.session = self.duplicate_of = self._refusal = None
        self.is_served = False
        self.slots = ()  # those with a batch that is not yet consumed stay mapped
        self._prefetch.forget(self.number)


def name_session(welcome: Welcome | None) -> str:
    """The node's name and the session's id as the node's log has them; "" without one."""
    if welcome is None:
        return ""
    host = welcome.node.partition(" ")[0]  # an endpoint follows, which is in the line already
    return f" (node {host}, session {session_id(welcome.session)})"
