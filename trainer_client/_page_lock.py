"""Has CUDA lock the pages of lent slots, so that it copies straight from them, asynchronously.

A slot is registered when it is first copied from, and for as long as it is mapped. Where CUDA
refuses, copies still work, through CUDA's own staging memory and so more slowly: that is counted
and said once.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from trainer_client._batch import SlotBuffer

_READ_ONLY: Final = 0x08  # cudaHostRegisterReadOnly: required for pages that are mapped so

_log = logging.getLogger(__name__)


class PageLocks:
    """Registers slots; ``refused`` counts those that CUDA would not take."""

    def __init__(self, cudart: Any, forget_error: Callable[[], None]) -> None:
        """Take ``torch.cuda.cudart()``, and what makes CUDA forget that a call has failed."""
        self.refused = 0
        self._cudart = cudart
        self._forget_error = forget_error

    def lock(self, slot: SlotBuffer) -> None:
        """Register a slot unless that was tried before."""
        if slot.is_page_locked is not None:
            return
        address, size_bytes = slot.address, slot.memory.layout.slot_bytes
        status = int(self._cudart.cudaHostRegister(address, size_bytes, _READ_ONLY))
        slot.is_page_locked = status == 0
        if status == 0:
            unregister = self._cudart.cudaHostUnregister
            slot.memory.before_unmapping(lambda: unregister(address))
            return
        self._forget_error()
        self.refused += 1
        if self.refused == 1:
            _log.warning(
                "CUDA cannot lock the feeder's slots (error %d), copies from them are slower: lift "
                "the limit on locked memory (docker run --ulimit memlock=-1, systemd "
                "LimitMEMLOCK=infinity; Kubernetes takes it from the container runtime)",
                status,
            )
