"""While the daemon packs, clients are answered at the endpoints of its node processes."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.fetcher import BatchFetcher
from feeder.client.stats import request_counters, request_report
from feeder.daemon.config import Config, load_config
from feeder.daemon.early_answers import answer_early
from feeder.daemon.notify import Notifier
from feeder.errors import FeederError, PeerError, ResourceError
from feeder.session.fair_share import BURST
from feeder.wire.messages import MAGIC, PROTOCOL_VERSION, Hello, NotReady, Refused
from tests.support.daemon import DEADLINE_S, RawClient, small_recipe
from tests.support.key_pairs import KeyPair
from tests.support.machine_tree import node, write_tree

CPUS = sorted(os.sched_getaffinity(0))
HELLO = Hello(dataset="d", recipe=small_recipe(), seed=3, window=1, client="test")


def progress() -> NotReady:
    return NotReady(text="packing d, 34 %, 5 min left", advances=7)


def config(folder: Path, **keys: object) -> Config:
    settings = {"data": {"d": str(folder)}, "serve.bind": (f"ipc://{folder}/s",)}
    return load_config(None, {**settings, **{f"serve.{key}": text for key, text in keys.items()}})


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    with answer_early(config(tmp_path), progress, Notifier({})):
        yield f"ipc://{tmp_path}/s"


def fetch(endpoint: str, **options: object) -> BatchFetcher:
    return BatchFetcher(
        endpoint,
        dataset="d",
        recipe=small_recipe(),
        timeout_s=1.0,
        **options,  # type: ignore[arg-type]
    )


def test_everything_that_asks_gets_the_progress(endpoint: str) -> None:
    with RawClient(endpoint) as client:
        client.send(HELLO)
        assert client.receive() == progress()
    with pytest.raises(PeerError, match=f"from {endpoint} within .*: it is packing d, 34 %, 5 min"):
        fetch(endpoint)
    report = request_report(endpoint, DEADLINE_S)
    verdict = report.verdict
    assert (verdict.kind, verdict.text) == ("packing", "packing d, 34 %, 5 min left")
    assert (report.pid, report.nodes, report.datasets) == (os.getpid(), (), ())
    assert request_counters(endpoint, DEADLINE_S)["packing"] == "packing d, 34 %, 5 min left"


def test_the_limits_of_a_node_process_hold(endpoint: str) -> None:
    assert stat.S_IMODE(Path(endpoint.removeprefix("ipc://")).stat().st_mode) == 0o660
    with RawClient(endpoint) as client:
        hello = msgspec.msgpack.encode({**msgspec.to_builtins(HELLO), "type": "Hello"})
        client.socket.send(MAGIC + bytes([PROTOCOL_VERSION - 1]) + hello)
        refused = client.receive()
        assert isinstance(refused, Refused)
        assert refused.code == "version"
        for _ in range(int(BURST)):
            client.send(HELLO)
        while not (isinstance(refused, Refused) and refused.code == "rate"):
            refused = client.receive()
        client.socket.send_multipart([b"several", b"frames"])
    assert request_counters(endpoint, DEADLINE_S)["frames_dropped.over-rate"]


def test_keys_hold_as_in_a_node_process(tmp_path: Path) -> None:
    server, listed, other = (KeyPair.make(tmp_path, name) for name in ("s", "listed", "other"))
    (tmp_path / "clients").mkdir()
    listed.public.rename(tmp_path / "clients" / listed.public.name)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    keys = {"secret_key": str(server.secret), "client_keys": str(tmp_path / "clients")}
    with answer_early(config(tmp_path, bind=(endpoint,), **keys), progress, Notifier({})):
        with pytest.raises(PeerError, match="packing d, 34 %"):
            fetch(endpoint, keys=listed.to(server))
        for unlisted in (other.to(server), None):
            with pytest.raises(FeederError) as caught:
                fetch(endpoint, keys=unlisted)
            assert "packing" not in str(caught.value)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_the_endpoints_of_all_node_processes_answer(tmp_path: Path) -> None:
    tree = node(0, str(CPUS[0]), 1 << 20) | node(1, str(CPUS[1]), 1 << 20)
    machine = {"topology_root": str(write_tree(tmp_path / "machine", tree))}
    with answer_early(config(tmp_path, **machine), progress, Notifier({})):
        for name in ("s", "s.1"):
            assert request_report(f"ipc://{tmp_path}/{name}", DEADLINE_S).nodes == ()


def test_an_endpoint_in_use_is_found_before_anything_is_packed(tmp_path: Path) -> None:
    for _ in range(2):  # it is free again afterwards
        with (
            answer_early(config(tmp_path), progress, Notifier({})),
            pytest.raises(ResourceError, match="is in use by another process"),
            answer_early(config(tmp_path), progress, Notifier({})),
        ):
            pass
