"""Where feeders are: lists, files that are watched, names."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from feeder.client.endpoints import (
    ENDPOINTS_MAX,
    FILE_BYTES_MAX,
    INTERVALS_S,
    Directory,
    Listing,
    check_endpoint,
    parse_list,
)
from feeder.errors import ConfigError
from tests.support.daemon import wait_until

WAIT_S = 60.0
TURN_S = 1 / 128  # of the watch, in these tests


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive(), thread.name


@pytest.fixture
def _quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.client.endpoints._TICK_S", TURN_S)
    for scheme in INTERVALS_S:
        monkeypatch.setitem(INTERVALS_S, scheme, TURN_S)


class Changes:
    """Collects the changes that the watch reports."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heard: list[tuple[str, ...]] = []

    def __call__(self, listing: Listing) -> None:
        with self._changed:
            self._heard.append(tuple(listing))
            self._changed.notify_all()

    def wait_for(self, *endpoints: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: endpoints in self._heard, WAIT_S), self._heard


def write(path: Path, text: str) -> None:
    """Replace a file by another, as editors and `kubectl` do."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.rename(path)


# What is an endpoint


@pytest.mark.parametrize(
    "text",
    [
        "tcp://127.0.0.1:5555",
        "tcp://feeder-3.rack.example:1",
        "tcp://[::1]:65535",
        "tcp://[fe80::1%eth0]:5555",
        "ipc:///run/feeder/n",
    ],
)
def test_a_valid_endpoint_is_accepted_unchanged(text: str) -> None:
    assert check_endpoint(text) == text
    assert tuple(Directory(text).read()) == (text,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "neither tcp nor ipc"),
        ("udp://h:1", "neither tcp nor ipc"),
        ("ipc://relative", "neither tcp nor ipc"),
        ("ipc:///a\0b", "neither tcp nor ipc"),
        ("tcp://h", "it has no host and port"),
        ("tcp://a\n:5", "it has no host and port"),
        ("tcp://h:0", "'0' is no port"),
        ("tcp://h:65536", "'65536' is no port"),
        ("tcp://h:" + "9" * 5000, "is no port"),
        ("tcp://::1:5", "an IPv6 address needs brackets"),
        ("tcp://[::g]:5", "is no IPv6 address"),
    ],
)
def test_an_invalid_endpoint_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be dialled .*({reason}).*: use tcp://HOST:PORT"):
        check_endpoint(text)


# A list in a file


@pytest.mark.parametrize(
    ("content", "listing"),
    [
        (
            b"# ours\r\n\r\n  tcp://a:1  # first\r\ntcp://b:2\nipc:///run/n\n#tcp://c:3\ntcp://d:4",
            {"tcp://a:1": "", "tcp://b:2": "", "ipc:///run/n": "", "tcp://d:4": ""},
        ),
        (
            b"rack-1 tcp://a:1\ntcp://b:1\n  pod.2\ttcp://c:1  # renamed\n",
            {"tcp://a:1": "rack-1", "tcp://b:1": "", "tcp://c:1": "pod.2"},
        ),
    ],
    ids=["comments and line ends", "names"],
)
def test_a_list_has_an_endpoint_a_line(content: bytes, listing: Listing) -> None:
    assert [*parse_list(content, "f").items()] == [*listing.items()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a tcp://a:1\nb tcp://b:1\na tcp://c:1\n", "f:3: 'a' is the name of line 1 already"),
        (b"-a tcp://a:1\n", "f:1: '-a' is no name of a feeder: use letters, digits"),
        (b"a dns://a:1\n", "f:1: endpoint 'dns://a:1' cannot be dialled"),
        (b"tcp://a:1\n\nhttp://b\n", "f:3: endpoint 'http://b' cannot be dialled"),
        (b"dns://a:1\n", "f:1: 'dns://a:1' .* to the loader beside the file"),
        (b"tcp://a:1\ntcp://\xff:2", "f:2: not UTF-8: write one endpoint a line"),
        (b"#" * (FILE_BYTES_MAX + 1), "f: over 1048576 bytes: it is no list of endpoints"),
    ],
)
def test_an_invalid_list_is_refused_with_its_line(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_list(content, "f")


# A directory


def test_endpoints_and_files_are_listed_as_given_each_endpoint_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(["tcp://b:1", "ipc:///n", "tcp://b:1"])
    assert tuple(directory.read()) == ("tcp://b:1", "ipc:///n")
    assert directory.name == "tcp://b:1, ipc:///n, tcp://b:1"
    path = tmp_path / "feeders"
    write(path, "tcp://b:1\ntcp://a:1\n")
    assert tuple(Directory(["tcp://a:1", f"file://{path}"]).read()) == ("tcp://a:1", "tcp://b:1")
    monkeypatch.chdir(tmp_path)
    directory = Directory(Path("feeders"))
    assert tuple(directory.read()) == ("tcp://b:1", "tcp://a:1")
    assert directory.name == f"file://{path}"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "the list is empty"),
        (["tcp://a:1", "http://b"], "endpoint 'http://b' cannot be dialled"),
        ("file://relative", "write file:// and an absolute path"),
        ("dns://name", "endpoint 'dns://name' cannot be dialled .it has no host and port"),
        ("dns://" + "a" * 64 + ":1", "no host name: .*label too long"),
    ],
)
def test_an_invalid_source_is_refused_at_once(names: str | Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Directory(names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "endpoint file://.*/feeders: No such file or directory"),
        ("# none\n", "endpoint file://.*/feeders: lists no endpoint"),
        (
            "".join(f"tcp://a:{port}\n" for port in range(1, ENDPOINTS_MAX + 2)),
            "feeders: lists more than the maximum of 4096 endpoints",
        ),
        ("tcp://a:1\nnonsense\n", "endpoint .*/feeders:2: endpoint 'nonsense' cannot be dialled"),
    ],
)
def test_a_file_that_is_invalid_at_the_start_is_an_error(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        write(tmp_path / "feeders", content)
    with pytest.raises(ConfigError, match=message):
        Directory(tmp_path / "feeders").read()
    os.mkfifo(tmp_path / "pipe")  # reading it blocks until another process writes to it
    with pytest.raises(ConfigError, match=r"endpoint .*/pipe: it is a named pipe"):
        Directory(tmp_path / "pipe").read()


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: write(path, "nonsense")])
def test_a_file_that_becomes_invalid_keeps_its_last_list_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "feeders"
    write(path, "tcp://a:1")
    directory = Directory(path)
    directory.read()
    harm(path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert tuple(directory.read()) == ("tcp://a:1",)
        (record,) = caplog.records
        assert record.getMessage().endswith("; its last list stays valid")
        assert str(path) in record.getMessage()
        assert len(directory.problems) == 1
        write(path, "tcp://b:1")
        assert tuple(directory.read()) == ("tcp://b:1",)
        assert directory.problems == {}
        harm(path)
        directory.read()
        assert len(caplog.records) == 2, "it was well in between"


# A watch


@pytest.mark.usefixtures("_quick_watch")
def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "feeders"
    write(path, "tcp://a:1")
    directory, changes = Directory([f"file://{path}", "tcp://z:1"]), Changes()
    directory.read()
    directory.watch(changes)
    write(path, "tcp://a:1\ntcp://b:1")
    changes.wait_for("tcp://a:1", "tcp://b:1", "tcp://z:1")
    with path.open("a", encoding="utf-8") as file:
        file.write("\ntcp://c:1")
    changes.wait_for("tcp://a:1", "tcp://b:1", "tcp://c:1", "tcp://z:1")
    directory.close()


# Names


class Resolver:
    """Stands in for the system's; ``addresses`` are those of every name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int, **options: object) -> Sequence[object]:
        self.asked.append((host, port))
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, os.strerror(2))
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, 0, 0, "", (address, port))
            for address in self.addresses
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    found = Resolver("10.0.0.2", "10.0.0.1", "10.0.0.2")
    monkeypatch.setattr(socket, "getaddrinfo", found)
    return found


@pytest.mark.usefixtures("_quick_watch")
def test_a_name_stands_for_all_its_addresses_and_is_looked_up_again(resolver: Resolver) -> None:
    directory, changes = Directory("dns://feeders:5555"), Changes()
    found = ("tcp://10.0.0.1:5555", "tcp://10.0.0.2:5555")
    assert tuple(directory.refresh()) == found
    assert resolver.asked == [("feeders", 5555)]
    directory.watch(changes)
    resolver.addresses = "fd00::1", "10.0.0.1"
    changes.wait_for("tcp://10.0.0.1:5555", "tcp://[fd00::1]:5555")
    directory.close()
    assert check_endpoint("tcp://[fd00::1]:5555")


@pytest.mark.usefixtures("_quick_watch")
def test_a_name_that_does_not_resolve_yet_is_looked_up_until_it_does(
    resolver: Resolver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(INTERVALS_S, "dns", 3600.0)  # only of a name that was found
    found, resolver.addresses = resolver.addresses[:1], ()
    directory, changes = Directory(["dns://feeders:5555", "tcp://10.0.0.3:1"]), Changes()
    assert tuple(directory.read()) == ("tcp://10.0.0.3:1",), "name servers may take their time"
    assert tuple(directory.refresh()) == ("tcp://10.0.0.3:1",)
    assert caplog.messages == ["dns://feeders:5555: No such file or directory; waiting"]
    assert [*directory.problems.values()] == ["dns://feeders:5555: No such file or directory"]
    directory.watch(changes)
    resolver.addresses = found
    changes.wait_for("tcp://10.0.0.2:5555", "tcp://10.0.0.3:1")
    directory.close()
    assert len(caplog.messages) == 1


@pytest.mark.usefixtures("_quick_watch")
def test_hosts_that_do_not_resolve_are_reported_at_once_and_until_they_do(
    resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    found, resolver.addresses = resolver.addresses, ()
    directory = Directory(["tcp://a:1", "tcp://b:1", "tcp://10.0.0.1:1"])
    assert tuple(directory.read()) == ("tcp://a:1", "tcp://b:1", "tcp://10.0.0.1:1")
    directory.watch(lambda endpoints: pytest.fail(f"{endpoints}: they are dialled as names"))
    (watch,) = [thread for thread in threading.enumerate() if thread.name == "feeder endpoints"]
    wait_until(lambda: len(resolver.asked) >= 6, "they are looked up again")
    assert directory.problems == {
        f"tcp://{host}:1": f"tcp://{host}:1: the name {host} does not resolve (No such file or "
        "directory): correct it, or give the address"
        for host in "ab"
    }
    assert caplog.messages == [
        "; ".join(f"{problem}; waiting" for problem in directory.problems.values())
    ]
    resolver.addresses = found
    watch.join(WAIT_S)
    assert not watch.is_alive(), "nothing remains to be watched"
    assert directory.problems == {}
