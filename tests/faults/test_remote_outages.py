"""Stores that are away, credentials that expire, and starts without either."""

import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

import pytest

from bench.store_proxy import Kind, StoreProxy
from feeder.errors import ConfigError, DatasetError, PeerError
from tests.faults.remote import (
    EPOCH,
    WHOLE,
    Remote,
    Taker,
    leftovers,
    load_epoch,
    remote_store,
    serve,
    store_record,
    take_epoch,
)
from tests.support.daemon import Daemon, customised, wait_until
from tests.support.sources import call_feeder, error_line

IMPATIENT: Final = """
import sys
if "serve" in sys.orig_argv:
    from feeder.disk_cache import folder
    assert folder._WARM_PATIENCE_S == 5.0
    folder._WARM_PATIENCE_S = 0.5
if "feeder.disk_cache" in sys.orig_argv:
    from feeder.disk_cache.fetcher import Fetcher
    assert Fetcher.__init__.__kwdefaults__["patience_s"] == 30.0
    Fetcher.__init__.__kwdefaults__["patience_s"] = 2.0
"""
"""How long a store that is away is waited for."""

REFUSED: Final = {
    "expired": "the credentials have expired (ExpiredToken as told): renew them",
    "denied": "access denied (AccessDenied as told): give these credentials the right to read it, "
    "or use others",
}


def test_a_store_that_is_away_is_waited_for_and_missed_only_for_what_is_not_on_the_disk(
    published: Path, epoch: list[str], tmp_path: Path
) -> None:
    with remote_store(published, "warm", "cold") as remote:
        data, port = remote.data("warm", "cold"), remote.proxy.port
        with serve(tmp_path, *data) as daemon, Taker(daemon.endpoint, "warm") as taker:
            taken = taker.take(1)
            remote.proxy.close()
            taker.ask()
            wait_until(
                lambda: store_record(daemon.endpoint).retries.get("unreachable", 0) >= 2,
                "it is tried again",
            )
            before, remote.proxy = remote.proxy, StoreProxy(remote.store.port, listen=port)
            with remote.proxy:
                assert taken + taker.take(EPOCH - 1) == epoch
                remote.proxy.exchanges[:0] = before.exchanges
                remote.assert_nothing_twice("warm")
        environ = customised(tmp_path / "site", IMPATIENT)
        with serve(tmp_path, *data, environ=environ) as daemon:
            for name in ("cold", "warm"):
                assert re.search(
                    rf"feeder: warning: serving {remote.url(name)} from the disk cache, {tmp_path}"
                    rf"/disk/feeder-pieces/{name}-\w+-\w+, without the store: {remote.url(name)}/"
                    r"manifest\.json: the store cannot be reached \(Connection refused\): check "
                    "the endpoint and the network\n",
                    "".join(daemon.lines),
                )
            assert take_epoch(daemon.endpoint, "warm") == epoch
            (failed,) = set(take_epoch(daemon.endpoint, "cold", WHOLE)[:1])
            assert re.fullmatch(
                rf"failed: {remote.url('cold')}/shard-0000\d\.fds: the store cannot be reached "
                r"\(Connection refused\): check the endpoint and the network",
                failed,
            )
            wait_until(
                lambda: store_record(daemon.endpoint).failures.get("unreachable", 0) > 0,
                "it is counted",
            )
        assert leftovers(tmp_path / "disk") == []


def test_a_loader_that_waits_names_the_store(
    published: Path, epoch: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with remote_store(published, "x") as remote, serve(tmp_path, *remote.data("x")) as daemon:
        remote.proxy.strike("stall", "*/shard-0000[1-4]*")
        with ThreadPoolExecutor(1) as thread:
            taken = thread.submit(load_epoch, daemon.endpoint, "x")
            wait_until(lambda: "waiting for" in caplog.text, "it logs that it waits")
            remote.proxy.mend()
            assert taken.result() == epoch
    assert re.search(
        r"batch 0 of epoch 0 of x from ipc://\S+: waiting for 3\.0 s: its last message came .* "
        rf"0 of its 16 rows have arrived: batches wait for samples from {remote.url('x')} \(node ",
        caplog.text,
    )


def test_credentials_that_are_renewed_in_their_file_are_used(
    published: Path, epoch: list[str], tmp_path: Path
) -> None:
    keys = tmp_path / "credentials"

    def renew(key: str) -> None:
        new = keys.with_suffix(".new")
        new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        new.replace(keys)

    renew("FIRST")
    with remote_store(published, "expired", "denied", "early") as remote:
        data = [f"--data={name}=s3://bucket/{name}" for name in ("expired", "denied", "early")]
        environ = remote.store.environ(remote.proxy.endpoint)
        environ = {name: text for name, text in environ.items() if "KEY" not in name}
        environ["AWS_SHARED_CREDENTIALS_FILE"] = str(keys)
        with serve(tmp_path, *data, environ=environ) as daemon:
            fail_and_renew(daemon, remote, "expired", epoch, "FIRST", lambda: renew("SECOND"))
            fail_and_renew(daemon, remote, "denied", epoch, "SECOND", lambda: renew("THIRD"))
            renew("FOURTH")
            remote.proxy.strike("expired", key="THIRD")
            wait_until(
                lambda: take_epoch(daemon.endpoint, "early") == epoch, "the new ones are found"
            )


def fail_and_renew(
    daemon: Daemon,
    remote: Remote,
    kind: Literal["expired", "denied"],
    epoch: list[str],
    key: str,
    renew: Callable[[], None],
) -> None:
    """Have a store refuse a key in mid-epoch, and a new one bring the rest of the epoch."""
    with Taker(daemon.endpoint, kind) as taker:
        assert taker.take(1) == epoch[:1]
        remote.proxy.strike(kind, key=key)
        failed = [line for line in taker.take(EPOCH - 1) if line.startswith("failed: ")]
    assert failed
    line = rf"failed: s3://bucket/{kind}/shard-0000\d\.fds: {re.escape(REFUSED[kind])}"
    assert all(re.fullmatch(line, text) for text in failed), failed
    wait_until(
        lambda: store_record(daemon.endpoint).failures.get(kind, 0) == len(failed),
        "each batch is counted",
    )
    renew()
    wait_until(lambda: take_epoch(daemon.endpoint, kind) == epoch, "the new key is used")
    remote.assert_nothing_twice(kind)


@pytest.mark.parametrize(
    ("kind", "paths", "words", "status"),
    [
        ("expired", "*", REFUSED["expired"], DatasetError.exit_status),
        ("denied", "*", REFUSED["denied"], DatasetError.exit_status),
        ("no-object", "*.fds", "there is no such object or bucket (NoSuchKey as told): check the "
         "address", DatasetError.exit_status),
        ("flip", "*.fds", "has a damaged header; restore it or pack again",
         DatasetError.exit_status),
        ("error", "*", "the store reports an error of its own (InternalError as told): try again "
         "later", PeerError.exit_status),
        ("slow-down", "*", "the store limits the rate of requests (SlowDown as told): raise its "
         "limit, or try again later", PeerError.exit_status),
        ("reset", "*.fds", "the connection was closed in mid-transfer (Connection reset by peer): "
         "check the network and proxies", PeerError.exit_status),
    ],
)  # fmt: skip
def test_a_start_that_cannot_begin_a_dataset_is_one_line(
    store: Remote, tmp_path: Path, kind: Kind, paths: str, words: str, status: int
) -> None:
    """Of status 5 if it may pass, after which systemd starts it again."""
    store.proxy.strike(kind, paths)
    failed = start(store.url("x"), tmp_path)
    store.proxy.mend()
    name = "manifest.json" if paths == "*" else "shard-00000.fds"
    between = " " if kind == "flip" else ": "
    assert error_line(failed) == f"feeder: error: {store.url('x')}/{name}{between}{words}"
    assert failed.returncode == status
    assert leftovers(tmp_path) == []


def test_a_cold_start_without_the_store_is_one_line(store: Remote, tmp_path: Path) -> None:
    store.proxy.close()
    failed = start(store.url("x"), tmp_path)
    assert error_line(failed) == (
        f"feeder: error: {store.url('x')}/manifest.json: the store cannot be reached (Connection "
        "refused): check the endpoint and the network"
    )
    assert failed.returncode == PeerError.exit_status


def test_a_folder_with_files_of_others_is_refused_and_left_alone(
    store: Remote, tmp_path: Path
) -> None:
    (tmp_path / "feeder-pieces").mkdir()
    (tmp_path / "feeder-pieces" / "thesis.tex").touch()
    failed = start(store.url("x"), tmp_path)
    assert error_line(failed) == (
        f"feeder: error: {tmp_path}/feeder-pieces has files that Feeder did not download, and no "
        "MARKER: choose another folder with cache.disk_path (--disk-path)"
    )
    assert failed.returncode == ConfigError.exit_status
    assert [path.name for path in tmp_path.rglob("*")] == ["feeder-pieces", "thesis.tex"]


@pytest.fixture
def store(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """A store that commands in this process do not wait for."""
    for patience in ("disk_cache.folder._PATIENCE_S", "source.location.objects.PATIENCE_S"):
        monkeypatch.setattr(f"feeder.{patience}", 0.1)
    with remote_store(published, "x") as remote:
        yield remote


def start(url: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    options = ("--bind", f"ipc://{folder}/node", "--disk-path", folder)
    return call_feeder("serve", "--data", f"x={url}", *options)
