"""How the I/O thread gets at the slots of a session: claims them, and hears the answer by polling.

One claim is on its way at most, that of the session which ``ClientSession`` speaks in now. What
becomes of it, ``ClientSession`` is told; here are only the connection and the mapping.
"""

import threading
from collections.abc import Sequence

import zmq

from feeder.lent_memory import LentMemory, NotSharedError, SlotClaim
from feeder.slot_layout import SlotLayout
from trainer_client._batch import SlotBuffer
from trainer_client._session import ClientSession


class Claimant:
    """Claims what the session wants claimed; ``close()`` gives up what is on its way."""

    def __init__(
        self, session: ClientSession, changed: threading.Condition, poller: zmq.Poller
    ) -> None:
        self._session = session
        self._changed = changed
        self._poller = poller
        self._claim: SlotClaim | None = None
        self._number = 0  # of the session whose slots are claimed
        self._layout = SlotLayout(slots=0, batch_size=0, image_size=0)

    def tend(self) -> None:
        """Begin or give up a claim, as the session wants it."""
        with self._changed:
            wanted = self._session.take_claim()
            is_over = self._claim is not None and not self._session.awaits_slots
        if wanted is not None or is_over:
            self.close()
        if wanted is None:
            return
        self._number = wanted.session
        self._layout = wanted.layout
        try:
            self._claim = SlotClaim(wanted.door, wanted.session)
        except NotSharedError as error:
            self._fail(error)
            return
        self._poller.register(self._claim.fileno(), zmq.POLLIN)

    def hear(self) -> None:
        """Take in the answer if it has come."""
        if self._claim is None:
            return
        try:
            memory = self._claim.take(self._layout)
        except NotSharedError as error:
            self.close()
            self._fail(error)
            return
        if memory is not None:
            self._poller.unregister(self._claim.fileno())
            self._claim = None  # its connection is the memory's now
            with self._changed:
                self._session.claimed(self._number, _as_buffers(memory))

    def close(self) -> None:
        """Give up the claim that is on its way, if there is one."""
        if self._claim is not None:
            self._poller.unregister(self._claim.fileno())
            self._claim.close()
            self._claim = None

    def _fail(self, error: NotSharedError) -> None:
        with self._changed:
            self._session.not_shared(self._number, str(error))


def _as_buffers(memory: LentMemory) -> Sequence[SlotBuffer]:
    return [SlotBuffer(memory, number) for number in range(memory.layout.slots)]
