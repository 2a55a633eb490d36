"""The cost of CURVE keys, and of a client that sends garbage: rows of ``feeder-bench stream``.

Two daemons, one plain and one with keys, take turns with the same batches. The garbage comes from a
separate process on the client's core (``garbage``), in every second turn of a transport.

    stream/tcp-curve            encrypted tcp, against plain tcp of the same rounds
    stream/X-beside-garbage     a good client over X, against the same client alone
    crypto/NAME                 how fast the crypto library that libzmq uses encrypts one chunk
"""

import ctypes
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from feeder.daemon.config import ServeConfig
from feeder.plan.recipe import Recipe
from feeder.process.child import python_command
from feeder.security.crypto_library import find_crypto_library
from feeder.security.keys import ClientKeys, SecretKey, format_public_key, format_secret_key

from ..daemon import DATASET_NAME, running_daemon
from ..fetcher import BatchFetcher
from ..line_process import LineProcess
from ..machine import pinned_to
from ..report import RATE, Result, single, summarise
from ..rounds import Contender, run_rounds, warm_up
from .streams import WINDOW

_TIMEOUT_S: Final = 60.0
_BOX_BYTES: Final = ServeConfig().chunk_images * 224 * 224 * 3  # a chunk
_BOX_OVERHEAD_BYTES: Final = 16
_BOXES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """How long to measure, and where."""

    rounds: int
    batches: int
    """In a round, of each contender."""
    worker_core: int
    client_core: int


def measure_security(path: Path, recipe: Recipe, options: SecurityOptions) -> list[Result]:
    """Return the rows; PeerError when a daemon stops replying."""
    cores = frozenset({options.worker_core})
    with (
        ExitStack() as stack,
        pinned_to(frozenset({options.client_core})),
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder,
    ):
        server, client = _write_keys(Path(folder))
        usual = ["--decoded-bytes", "0", "--lease-s", "3600"]
        keyed = [*usual, "--secret-key", f"{folder}/server", "--client-keys", f"{folder}/allowed"]
        plain = stack.enter_context(running_daemon(path, workers=1, cores=cores, options=usual))
        safe = stack.enter_context(running_daemon(path, workers=1, cores=cores, options=keyed))
        turns = {
            "tcp": _Turns(plain.tcp, recipe),
            "tcp-curve": _Turns(safe.tcp, recipe, ClientKeys(server.public(), client)),
            "ipc": _Turns(plain.ipc, recipe),
        }
        contenders: dict[str, Contender] = {}
        for name, turn in turns.items():
            stack.callback(turn.fetcher.close)
            contenders[name] = turn.fetch
        for name, endpoint in (("tcp", plain.tcp), ("ipc", plain.ipc)):
            contenders[f"{name}-beside-garbage"] = _BesideGarbage(turns[name], endpoint).fetch
        return [*_run(contenders, recipe, options), measure_crypto()]


class _Turns:
    """A session that continues through the epochs."""

    def __init__(self, endpoint: str, recipe: Recipe, keys: ClientKeys | None = None) -> None:
        self.fetcher = BatchFetcher(
            endpoint,
            dataset=DATASET_NAME,
            recipe=recipe,
            window=WINDOW,
            timeout_s=_TIMEOUT_S,
            client="feeder-bench security",
            keys=keys,
        )
        self._asked = 0

    def fetch(self, first: int, end: int) -> None:
        """Fetch the next end - first batches."""
        for _ in self.fetcher.fetch_run(self._asked, end - first):
            self._asked += 1


class _BesideGarbage:
    """The same while another client sends garbage."""

    def __init__(self, turns: _Turns, endpoint: str) -> None:
        self._turns = turns
        self._endpoint = endpoint
        self.taken_s = 0.0

    def fetch(self, first: int, end: int) -> None:
        """Fetch, with a clock of its own: the start of the other client must not count."""
        with _garbage(self._endpoint):
            began_s = time.perf_counter()
            self._turns.fetch(first, end)
            self.taken_s += time.perf_counter() - began_s


def _run(
    contenders: dict[str, Contender], recipe: Recipe, options: SecurityOptions
) -> list[Result]:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    warm_up(contenders, items=options.batches, piece=options.batches)
    beside = {n: c.__self__ for n, c in contenders.items() if n.endswith("garbage")}  # type: ignore[attr-defined]
    for each in beside.values():
        each.taken_s = 0.0
    for seconds in run_rounds(
        contenders, items=options.batches, piece=options.batches, rounds=options.rounds
    ):
        for name, each in beside.items():
            seconds[name], each.taken_s = each.taken_s, 0.0
        for name, taken_s in seconds.items():
            rates[name].append(options.batches * recipe.batch_size / taken_s)
    rows = []
    for name, baseline in (
        ("tcp-curve", "tcp"),
        ("tcp-beside-garbage", "tcp"),
        ("ipc-beside-garbage", "ipc"),
    ):
        alone = summarise(f"stream/{baseline}", RATE, rates[baseline])
        rows.append(
            summarise(
                f"stream/{name}",
                RATE,
                rates[name],
                baseline=alone,
                baseline_values=rates[baseline],
            )
        )
    return rows


@contextmanager
def _garbage(endpoint: str) -> Iterator[None]:
    with LineProcess(python_command(f"{__package__}.garbage", os.getpid(), endpoint)) as process:
        process.next_line(_TIMEOUT_S)
        yield


def _write_keys(folder: Path) -> tuple[SecretKey, SecretKey]:
    """Write the server's secret key and the list of clients; return both secret keys."""
    server, client = (
        SecretKey(name, zmq.curve_keypair()[1].decode()) for name in ("server", "client")
    )
    (folder / "server").touch(0o600)
    (folder / "server").write_text(format_secret_key(server), "ascii")
    (folder / "allowed").write_text(format_public_key(client.public()), "ascii")
    return server, client


def measure_crypto() -> Result:
    """Return how fast a chunk is encrypted as CURVE does it, without libzmq; 0 when unknown."""
    name, path = find_crypto_library()
    if path is None:
        return single(f"crypto/{name}", "GB/s", 0.0)
    library = ctypes.CDLL(str(path))
    library.sodium_version_string.restype = ctypes.c_char_p
    version = library.sodium_version_string().decode()
    chunk, box = bytes(_BOX_BYTES), ctypes.create_string_buffer(_BOX_BYTES + _BOX_OVERHEAD_BYTES)
    arguments = box, chunk, ctypes.c_ulonglong(_BOX_BYTES), bytes(24), bytes(32)
    library.crypto_box_easy_afternm(*arguments)
    began_s = time.perf_counter()
    for _ in range(_BOXES):
        library.crypto_box_easy_afternm(*arguments)
    taken_s = time.perf_counter() - began_s
    return single(f"crypto/{name}-{version}", "GB/s", _BOXES * _BOX_BYTES / taken_s / 1e9)
