"""Page-locks lent slots for CUDA, so that it copies directly from them, asynchronously.

A slot is registered at its first copy and stays so until it is unmapped. Where CUDA refuses, copies
go through CUDA's own staging memory, which is slower; that is counted, and logged once.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from feeder.client.host_memory import SlotBuffer

_READ_ONLY: Final = 0x08  # cudaHostRegisterReadOnly: required for pages mapped read-only

_log = logging.getLogger(__name__)


class PageLocks:
    """Registers slots; ``refused`` counts those that CUDA refused."""

    def __init__(self, cudart: Any, clear_error: Callable[[], None]) -> None:
        """Take ``torch.cuda.cudart()``, and a function that clears CUDA's last error."""
        self.refused = 0
        self._cudart = cudart
        self._clear_error = clear_error

    def lock(self, slot: SlotBuffer) -> None:
        """Register a slot, at the first call only."""
        if slot.is_page_locked is not None:
            return
        address, size_bytes = slot.address, slot.memory.layout.slot_bytes
        status = int(self._cudart.cudaHostRegister(address, size_bytes, _READ_ONLY))
        slot.is_page_locked = status == 0
        if status == 0:
            unregister = self._cudart.cudaHostUnregister
            slot.memory.before_unmapping(lambda: unregister(address))
            return
        self._clear_error()
        self.refused += 1
        if self.refused == 1:
            _log.warning(
                "CUDA did not page-lock the feeder's slots (cudaError %d), so copies from them are "
                "slower; the number is explained in CUDA's documentation of cudaError_t",
                status,
            )
