"""``FeederLoader``: the batches of a feeder as tensors, ready on the device.

    with FeederLoader("tcp://127.0.0.1:5555", dataset="name", batch_size=256) as loader:
        for epoch in range(90):
            for images, labels in loader: ...

Epochs, ranks and resuming are those of all loaders, see ``_base``.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from trainer_client._base import Loader
from trainer_client._batch import Batch
from trainer_client._device import Normaliser, check_device, resolve_device
from trainer_client._epoch import EpochIterator
from trainer_client._feed import LoaderOptions, describe_images
from trainer_client._host_normalise import IMAGENET_MEAN, IMAGENET_STD
from trainer_client._like_dataloader import DatasetInfo
from trainer_client._staging import make_stage


class FeederLoader(Loader[Batch[torch.Tensor]]):
    """Batches from a feeder as tensors: ``for images, labels in loader``.

    ``images`` are (N, 4, S, S), normalised, with a fourth channel of zeros; ``channels=3`` leaves
    it out. On a CPU they are float32 and contiguous, on CUDA float16 and channels_last, unless
    ``dtype`` and ``memory_format`` say otherwise. ``labels`` are int64 (N,) or, by the dataset's
    kind of labels, float32 (N, W). Both are on the device; see ``Batch`` for the rest.

    Each ``iter(loader)`` is the next epoch, from 0 on, or the one that ``set_epoch`` chose; it
    begins with its first batch. Of W ranks, rank r gets the batches r, r + W, r + 2W, … of it. A
    new process resumes after ``load_state_dict(state)`` where the loader of ``state_dict()`` was,
    in mid-epoch too, also with another number of ranks of the same batch size × ranks.

    Use it as a context manager or call ``close()``. One thread may iterate at a time.
    """

    device: torch.device
    """The device of the batches."""
    dtype: torch.dtype
    """The type of the images."""
    memory_format: torch.memory_format
    """Of the images: torch.channels_last or torch.contiguous_format."""
    channels: int
    """4, the last of zeros, or 3."""

    def __init__(
        self,
        endpoint: str | os.PathLike[str] | Sequence[str],
        *,
        dataset: str,
        split: Literal["train", "val"] = "train",
        batch_size: int,
        seed: int = 0,
        image_size: int | Mapping[int, int] | Mapping[str, int] = 224,
        channels: Literal[3, 4] = 4,
        rank: int | None = None,
        world_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        window: int = 4,
        window_bytes: int = 2 << 30,
        timeout_s: float = 60.0,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        recipe: Mapping[str, object] | None = None,
        classes_of: Loader[Any] | DatasetInfo | Iterable[str] | None = None,
        share_memory: bool = True,
        server_key: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        summary: Callable[[str], None] | None = None,
        job: str = "",
    ) -> None:
        """Connect and wait for the first feeder's welcome.

        ``endpoint`` is one or several of tcp://HOST:PORT, ipc:///PATH, dns://NAME:PORT (every
        address of the name) and file:///PATH (one a line, read again when it changes). One endpoint
        of a host leads to all of its node processes. Feeders may come and go: all send the same
        batches. A feeder that would send different ones is an error at the start; later it is left
        out, see ``statistics().feeders_left_out``.

        ``rank`` and ``world_size`` default to torch.distributed's when the first iterator is made,
        or to 0 of 1 in a process that no launcher has started as one of several. ``device`` is
        CUDA's current device by default, else the CPU. ``window`` batches are requested ahead, or
        as many as fit into ``window_bytes``, at least one: 2 to 4 hide the latency of decoding, and
        2 more for each further feeder keep all of them busy; more only costs memory on both sides.
        ``timeout_s`` bounds every wait for the feeder, the first one included; a daemon that
        restarts within it only shows in ``statistics().reconnects``. ``image_size`` is in pixels,
        in training also by epoch, as ``{0: 128, 30: 160}``. ``recipe`` sets further fields of the
        recipe, such as ``{"scale": (0.35, 1.0)}``. ``classes_of``, another loader or the
        class names by label, is what the dataset's classes must be: pass the training loader to the
        loader for validation, so that equal labels mean the same class. At an ipc endpoint batches
        are read from the feeder's own memory; where that fails, or with ``share_memory=False``,
        they are copied over the socket, and ``statistics().copied_because`` has the reason.
        ``server_key``, the feeder's public key (a file or its 40 characters), and ``client_key``,
        the file of this client's secret key, are for tcp where the feeder has keys. ``summary``,
        ``print`` for example (``tqdm.write`` under ``progress()``), is called on every rank at the
        end of each epoch that is not left early, with a line on which side waited. ``job`` names
        the job, the same on all of its ranks and loaders: feeders divide their workers' time
        between jobs, not loaders; those without a name are one job of their client. While a feeder
        packs its source, and none serves, ``timeout_s`` starts again with all progress it reports.

        Raises ConfigError for invalid arguments (also those that only the feeder can check) and in
        a worker of a DataLoader, DatasetError when the feeder does not serve the dataset, PeerError
        when no feeder replies within ``timeout_s`` or, at once, when keys do not match, and
        ProtocolError when the peer has another protocol version or is no feeder.
        """
        options = LoaderOptions.of(locals())
        made = options.make_recipe()
        self._is_default_device = device is None
        self.device = resolve_device(device)
        is_cpu = self.device.type == "cpu"
        # Halves are slow on a CPU.
        self.dtype = dtype or (torch.float32 if is_cpu else torch.float16)
        # CUDA's matrix units want channels_last; on a CPU torch 2.14 crashes with it while it
        # trains some models, such as the Hugging Face Trainer's example.
        usual = torch.contiguous_format if is_cpu else torch.channels_last
        self.memory_format = memory_format or usual
        self.channels = channels
        normaliser = Normaliser(
            self.device,
            self.dtype,
            mean,
            std,
            channels=channels,
            memory_format=self.memory_format,
            packing=made.packing,
        )
        kind = str(self.dtype).removeprefix("torch.")
        shapes = describe_images(made, lambda size: (channels, size, size))
        super().__init__(
            options,
            made,
            make_stage(normaliser),
            described=f"{shapes} {kind} on {self.device}",
            allocate=_allocate_pinned if self.device.type == "cuda" else np.empty,
        )

    def __iter__(self) -> EpochIterator[Batch[torch.Tensor]]:
        """Return an iterator over the next epoch, which begins when its first batch is taken."""
        check_device(self.device, is_default=self._is_default_device)
        return super().__iter__()


def _allocate_pinned(shape: tuple[int, ...], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return a new page-locked array, for asynchronous copies to a CUDA device."""
    return torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=True).numpy()
