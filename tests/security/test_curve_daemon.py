"""The daemon with keys: listed clients are accepted, all others get the reason within 2 seconds."""

import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq

from bench.daemon import free_port
from bench.fetcher import BatchFetcher
from feeder.client.stats import request_counters
from feeder.errors import PeerError
from feeder.security.crypto_library import find_crypto_library
from feeder.security.handshake import (
    Address,
    HandshakeProblem,
    probe_mechanism,
)
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Welcome
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    happens_within,
    serve,
    small_recipe,
    wait_until,
)
from tests.support.key_pairs import KeyPair
from tests.support.sources import call_feeder, error_line, run_feeder
from trainer_client import FeederLoader

REFUSED_S = 2.0


@dataclass
class KeyedDaemon:
    """A daemon with keys, and the key pairs of the feeder, a listed and an unlisted client."""

    daemon: Daemon
    tcp: str
    ipc: str
    server: KeyPair
    friend: KeyPair
    stranger: KeyPair
    allowed: Path

    def counter(self, name: str) -> int:
        return int(request_counters(self.ipc, DEADLINE_S).get(name, 0))


@pytest.fixture(scope="module")
def keyed(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedDaemon]:
    folder = tmp_path_factory.mktemp("keys")
    server, friend, stranger = (
        KeyPair.make(folder, name) for name in ("server", "friend", "stranger")
    )
    allowed = folder / "allowed"
    allowed.mkdir()
    (allowed / "friend.pub").write_text(friend.public.read_text())
    # ipc before tcp and after it: neither gets tcp's options.
    with serve(
        packed,
        *("--bind", f"tcp://*:{free_port()}", "--bind", f"ipc://{folder}/s"),
        *("--secret-key", server.secret, "--client-keys", allowed, "--slots-bytes", str(4 << 20)),
        bind=f"ipc://{folder}/first",
        workers=1,
    ) as daemon:
        port = daemon.endpoints[1].rpartition(":")[2]
        yield KeyedDaemon(
            daemon,
            f"tcp://127.0.0.1:{port}",
            daemon.endpoints[2],
            server,
            friend,
            stranger,
            allowed,
        )


@pytest.fixture(scope="module")
def plain(packed: Path) -> Iterator[Daemon]:
    with serve(packed, workers=1) as daemon:
        yield daemon


def fetcher(endpoint: str, keys: ClientKeys | None) -> BatchFetcher:
    return BatchFetcher(
        endpoint, dataset="d", recipe=small_recipe(), timeout_s=DEADLINE_S, keys=keys
    )


def loader(endpoint: str, **keys: Any) -> FeederLoader:
    return FeederLoader(
        endpoint,
        **{"dataset": "d", "batch_size": 10, "image_size": 32, "device": "cpu", **keys},
    )


def test_listed_client_gets_the_same_bytes_over_tcp_as_over_ipc(keyed: KeyedDaemon) -> None:
    with (
        fetcher(keyed.tcp, keyed.friend.to(keyed.server)) as over_tcp,
        fetcher(keyed.ipc, None) as over_ipc,
    ):
        for number in (0, 8):
            encrypted = next(over_tcp.fetch(number))
            local = next(over_ipc.fetch(number))
            assert encrypted.pixels.tobytes() == local.pixels.tobytes()


def test_the_loader_takes_key_files_or_text(keyed: KeyedDaemon) -> None:
    text = keyed.server.public.read_text().split()[-1]
    for server_key in (keyed.server.public, text):
        with loader(keyed.tcp, server_key=server_key, client_key=keyed.friend.secret) as batches:
            assert len(next(iter(batches)).labels) == 10


def await_mechanism(peer: Address) -> str | None:
    """Probe until there is an answer: half a second is short on a busy machine."""
    found: list[str | None] = []
    wait_until(lambda: found.append(probe_mechanism(peer)) or found[-1], "the peer's greeting")
    return found[-1]


def test_tcp_is_encrypted_and_every_ipc_address_is_plain(keyed: KeyedDaemon) -> None:
    host, _, port = keyed.tcp.removeprefix("tcp://").rpartition(":")
    assert await_mechanism((host, int(port))) == "CURVE"
    paths = [each.removeprefix("ipc://") for each in keyed.daemon.endpoints[::2]]
    assert [await_mechanism(path) for path in paths] == ["NULL", "NULL"]
    for endpoint in keyed.daemon.endpoints[::2]:
        with RawClient(endpoint) as client:
            assert isinstance(client.hello(small_recipe(), window=1), Welcome)
            client.bye()


def key_mismatches(
    keyed: KeyedDaemon, plain: Daemon
) -> dict[str, tuple[str, KeyPair | None, KeyPair | None]]:
    """Endpoint, the server's public key and the client's, by the expected problem."""
    return {
        "does not know the key of 'stranger'": (keyed.tcp, keyed.server, keyed.stranger),
        "has another key than server_key": (keyed.tcp, keyed.stranger, keyed.friend),
        "accepts only clients with keys": (keyed.tcp, None, None),
        "has no keys": (plain.endpoint, keyed.server, keyed.friend),
    }


@pytest.mark.parametrize(
    "problem",
    [
        "does not know the key of 'stranger'",
        "has another key than server_key",
        "accepts only clients with keys",
        "has no keys",
    ],
)
def test_mismatched_keys_are_reported_quickly(
    keyed: KeyedDaemon, plain: Daemon, problem: str
) -> None:
    endpoint, server, client = key_mismatches(keyed, plain)[problem]
    paths = {}
    if client and server:
        paths = {"server_key": server.public, "client_key": client.secret}

    def load_once() -> float:
        began_s = time.monotonic()
        with pytest.raises(HandshakeProblem, match=problem) as refusal:
            loader(endpoint, **paths)
        assert endpoint in str(refusal.value)
        return time.monotonic() - began_s

    happens_within(REFUSED_S, load_once)
    options = [word for key, path in paths.items() for word in (f"--{key.replace('_', '-')}", path)]
    done = call_feeder("status", endpoint, "--timeout", str(DEADLINE_S), *options)
    assert done.returncode == PeerError.exit_status
    assert problem in error_line(done)


def test_commands_use_the_given_keys(keyed: KeyedDaemon, tmp_path: Path) -> None:
    options = "--server-key", keyed.server.public, "--client-key", keyed.friend.secret
    done = call_feeder("status", keyed.tcp, "--counters", *options)
    assert done.returncode == 0, done.stderr
    assert "sessions_opened" in done.stdout
    done = call_feeder(
        *("preview", "--from", keyed.tcp, "--dataset", "d", "--out", tmp_path / "p.png"),
        *("--image-size", "32", "--batch-size", "10", *options),
    )
    assert done.returncode == 0, done.stderr


def test_refusals_are_counted_by_reason_and_logged_without_the_key(keyed: KeyedDaemon) -> None:
    before = {
        name: keyed.counter(f"clients_refused.{name}")
        for name in ("unknown-key", "server-key", "mechanism")
    }
    with pytest.raises(HandshakeProblem):
        fetcher(keyed.tcp, keyed.stranger.to(keyed.server))
    with pytest.raises(HandshakeProblem):
        fetcher(keyed.tcp, keyed.friend.to(keyed.stranger))
    for name in ("unknown-key", "server-key"):
        wait_until(
            lambda name=name: keyed.counter(f"clients_refused.{name}") > before[name],  # type: ignore[misc]
            f"{name} is counted",
        )
    line = keyed.daemon.wait_line(r"is refused: its public key \S{8}… is not in ")
    key = keyed.stranger.public.read_text().split()[-1]
    assert key[:8] in line
    assert key[:9] not in "".join(keyed.daemon.lines)


def is_accepted(keyed: KeyedDaemon, keys: ClientKeys) -> bool:
    try:
        fetcher(keyed.tcp, keys).close()
    except HandshakeProblem:
        return False
    return True


def test_node_process_restarted_without_its_list_accepts_clients_once_it_is_back(
    keyed: KeyedDaemon,
) -> None:
    keys, away = keyed.friend.to(keyed.server), keyed.allowed.with_name("away")
    keyed.allowed.rename(away)
    keyed.daemon.node.kill()
    keyed.daemon.wait_line("node process 0 serves again")
    assert not is_accepted(keyed, keys)
    assert keyed.counter("clients_refused.no-list") > 0
    away.rename(keyed.allowed)
    wait_until(lambda: is_accepted(keyed, keys), "the client is accepted again")


def test_unix_sockets_are_accessible_to_the_group(keyed: KeyedDaemon) -> None:
    for endpoint in keyed.daemon.endpoints[::2]:
        path = Path(endpoint.removeprefix("ipc://"))
        for each in (path, Path(f"{path}.slots")):
            assert stat.S_IMODE(each.stat().st_mode) == 0o660


def test_log_and_show_contain_no_key(keyed: KeyedDaemon, packed: Path) -> None:
    secret = keyed.server.secret.read_text().split()[-1]
    keys = ("--secret-key", keyed.server.secret, "--client-keys", keyed.allowed)
    done = call_feeder("serve", "--data", f"d={packed}", *keys, "--show")
    assert done.returncode == 0
    assert str(keyed.server.secret) in done.stdout
    assert secret not in done.stdout + done.stderr + "".join(keyed.daemon.lines)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--secret-key {open} --client-keys {allowed}", "chmod 600 {open}"),
        ("--secret-key {secret}", "serve.client_keys is not"),
        ("--secret-key {secret} --client-keys {allowed} --insecure", "exclude each other"),
        ("--config {file}", "no key serve.insecure"),
    ],
)
def test_keys_that_protect_nothing_are_refused_at_the_start(
    keyed: KeyedDaemon, packed: Path, tmp_path: Path, options: str, problem: str
) -> None:
    open_key, file = KeyPair.make(tmp_path, "open").secret, tmp_path / "feeder.toml"
    open_key.chmod(0o644)
    file.write_text("[serve]\ninsecure = true\n")
    places = {"open": open_key, "secret": keyed.server.secret, "allowed": keyed.allowed}
    words = options.format(**places, file=file).split()
    done = run_feeder("serve", "--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0", *words)
    assert done.returncode == 2
    assert problem.format(**places) in error_line(done)


def test_the_wheel_of_pyzmq_has_libsodium() -> None:
    zmq.curve_keypair()
    name, path = find_crypto_library()
    assert name == "libsodium"
    assert path is None or path.name.startswith("libsodium")
