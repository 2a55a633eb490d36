"""Objects are read by ranges and listed; what fails is named, and tried again if it may pass."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from feeder.errors import ConfigError, StoreError
from feeder.store import connect
from feeder.store.address import StoreAddress
from feeder.store.client import Store
from feeder.store.faults import explain
from tests.store.conftest import Open, Retries
from tests.support.stores import (
    Answer,
    Fault,
    FaultyStore,
    S3Server,
    cut,
    hold,
    loopback_store,
    refusal,
    reset,
    short,
    stall,
    status,
)

DATA = bytes(range(250)) * 4
URL = "s3://bucket/prefix"


# --- What a store has, with moto ------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> S3Server:
    """moto with some objects in the bucket ``client``."""
    s3.make_bucket("client")
    for key in ("p/a", "p/b c", "p/ü%41#?~+&'", "p/folder/x", "p/folder/y", "p2/z", "z"):
        s3.put("client", key, DATA)
    s3.put("client", "p/empty", b"")
    return s3


def test_ranges_of_an_object(bucket: S3Server, open_store: Open) -> None:
    store = open_store("s3://client/p", bucket.environment)
    whole = store.read("a")
    assert bytes(whole.data) == DATA
    assert whole.size_bytes == 1000
    assert bytes(store.read("a", 990).data) == DATA[990:]
    assert bytes(store.read("a", 10, 20, etag=whole.etag).data) == DATA[10:30]
    assert bytes(store.read("a", 999, 1).data) == DATA[999:]
    assert store.read("a", 5, 0) == (b"", whole.etag, 1000)
    assert bytes(store.read("empty").data) == b""


def test_what_an_object_is(bucket: S3Server, open_store: Open) -> None:
    store = open_store("s3://client/p", bucket.environment)
    info = store.head("a")
    assert (info.name, info.size_bytes, info.etag) == ("a", 1000, store.read("a").etag)
    assert info.modified_ns > 0
    assert store.head("empty").size_bytes == 0


def test_an_empty_file_of_a_web_server(tmp_path: Path, open_store: Open) -> None:
    """nginx answers a range of it with status 200."""
    (tmp_path / "empty").touch()
    with loopback_store({"p": tmp_path}) as web:
        assert open_store(web.http_url("p"), {}).head("empty").size_bytes == 0


def test_objects_are_listed_below_a_folder(bucket: S3Server, open_store: Open) -> None:
    store = open_store("s3://client/p", bucket.environment)
    infos = {info.name: info for page in store.list() for info in page}
    assert [*infos] == ["a", "b c", "empty", "folder/x", "folder/y", "ü%41#?~+&'"]
    for name, info in infos.items():
        assert store.head(name)[1:3] == info[1:3]
    assert [info.name for page in store.list("folder") for info in page] == ["folder/x", "folder/y"]
    assert [*store.list("fold")] == []
    [page] = store.list(delimiter=True)
    assert [info.name for info in page] == ["folder/", "a", "b c", "empty", "ü%41#?~+&'"]
    [page] = store.list("folder", delimiter=True)
    assert [info.name for info in page] == ["folder/x", "folder/y"]
    [page] = open_store("s3://client", {}).list(delimiter=True)
    assert [info.name for info in page] == ["p/", "p2/", "z"]


def test_a_key_that_cannot_be_named_is_an_error_of_the_listing(
    s3: S3Server, open_store: Open
) -> None:
    s3.make_bucket("odd-keys")
    s3.put("odd-keys", "a//b", b"")
    with pytest.raises(StoreError, match='Path "a//b" contained empty path segment'):
        [*open_store("s3://odd-keys", s3.environment).list()]


def test_an_object_that_was_replaced_is_changed(bucket: S3Server, open_store: Open) -> None:
    store = open_store("s3://client/p", bucket.environment)
    bucket.put("client", "p/replaced", DATA)
    etag = store.head("replaced").etag
    bucket.put("client", "p/replaced", DATA[::-1])
    with pytest.raises(StoreError, match=r"^s3://client/p/replaced: the object has changed \(Prec"):
        store.read("replaced", 0, 10, etag=etag)


def test_a_public_bucket_needs_no_credentials(
    bucket: S3Server, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("client", "p/public", DATA, is_public=True)
    store = open_store("s3://client/p", {**bucket.environment, "AWS_SKIP_SIGNATURE": "true"})
    assert bytes(store.read("public", 0, 5).data) == DATA[:5]
    with pytest.raises(StoreError, match=r"access denied \(status 403\)"):
        store.read("a", 0, 5)
    web = open_store(f"{bucket.endpoint}/client/p", {})
    assert bytes(web.read("public", 0, 5).data) == DATA[:5]
    with pytest.raises(StoreError, match="a web server has no listing"):
        [*web.list()]


@pytest.mark.extensive("moto takes 5 ms for an object; the pages are tested with a faster store")
def test_pages_of_s3(s3: S3Server, open_store: Open) -> None:
    s3.make_bucket("pages")
    for number in range(1003):
        s3.put("pages", f"p/{number:04}", b"x")
    pages = [*open_store("s3://pages/p", s3.environment).list()]
    assert [info.name for page in pages for info in page] == [f"{n:04}" for n in range(1003)]


# --- Faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind", "line"),
    [
        (
            refusal(404, "NoSuchKey"),
            "gone",
            "there is no such object or bucket (NoSuchKey because): check",
        ),
        (
            refusal(404, "NoSuchBucket"),
            "gone",
            "there is no such object or bucket (NoSuchBucket because)",
        ),
        (status(404), "gone", "there is no such object or bucket (status 404)"),
        (refusal(403, "AccessDenied"), "denied", "access denied (AccessDenied because)"),
        (refusal(403, "InvalidAccessKeyId"), "denied", "access denied (InvalidAccessKeyId"),
        (refusal(403, "SignatureDoesNotMatch"), "denied", "access denied (SignatureDoesNotMatch"),
        (status(401), "denied", "access denied (status 401)"),
        (refusal(400, "ExpiredToken"), "expired", "the credentials have expired (ExpiredToken"),
        (refusal(403, "RequestExpired"), "expired", "the credentials have expired (RequestExp"),
        (refusal(412, "PreconditionFailed"), "changed", "the object has changed (Precondition"),
        (refusal(416, "InvalidRange"), "changed", "the object has changed (InvalidRange"),
        (refusal(500, "InternalError"), "server", "the store reports an error of its own (Intern"),
        (status(502), "server", "the store reports an error of its own (status 502)"),
        (refusal(503, "SlowDown"), "throttled", "the store limits the rate of requests (SlowDown"),
        (status(429), "throttled", "the store limits the rate of requests (status 429)"),
        (reset, "reset", "the connection was closed in mid-transfer"),
        (cut, "reset", "the connection was closed in mid-transfer"),
        (short, "short", "the store sent less than was requested"),
        (status(418), "unknown", "the store refused the request (status 418)"),
        (status(301), "unknown", "the bucket is in another region: set AWS_REGION"),
    ],
)
def test_each_fault_has_its_kind_and_line(
    faulty: FaultyStore, open_store: Open, fault: Fault, kind: str, line: str
) -> None:
    store = open_store(URL, faulty.environment, patience_s=0)
    faulty.fail("object", fault)
    with pytest.raises(StoreError) as caught:
        store.read("object", 0, 100)
    assert caught.value.kind == kind
    assert str(caught.value).startswith(f"s3://bucket/prefix/object: {line}")
    assert str(caught.value).isprintable()
    assert len(faulty.requests) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (status(500), "server"),
        (refusal(503, "SlowDown"), "throttled"),
        (reset, "reset"),
        (cut, "reset"),
        (short, "short"),
    ],
)
def test_what_may_pass_is_tried_again_and_counted(
    faulty: FaultyStore, open_store: Open, retries: Retries, fault: Fault, kind: str
) -> None:
    store = open_store(URL, faulty.environment)
    faulty.fail("object", fault, fault)
    assert bytes(store.read("object", 100, 200).data) == DATA[100:300]
    assert retries == [kind, kind]
    assert len(faulty.requests) == 3


def test_what_stays_is_not_tried_again(
    faulty: FaultyStore, open_store: Open, retries: Retries
) -> None:
    store = open_store(URL, faulty.environment)
    with pytest.raises(StoreError, match="NoSuchKey"):
        store.read("gone")
    assert (retries, len(faulty.requests)) == ([], 1)


def test_patience_ends(faulty: FaultyStore, open_store: Open, retries: Retries) -> None:
    store = open_store(URL, faulty.environment, patience_s=0.5)
    faulty.fail("object", reset, times=9)
    with pytest.raises(StoreError, match="the connection was closed in mid-transfer"):
        store.read("object")
    assert len(retries) < 5  # 0.1 s, 0.2 s, 0.4 s, … but for the jitter


def test_a_stalled_transfer_is_noticed(
    faulty: FaultyStore, open_store: Open, retries: Retries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "READ_TIMEOUT_S", 0.3)
    never = threading.Event()
    faulty.fail("object", stall, hold(never))
    store = open_store(URL, faulty.environment)
    assert bytes(store.read("object", 0, 500).data) == DATA[:500]
    assert {*retries} == {"timeout"}
    assert len(retries) >= 2
    faulty.fail("object", stall, times=9)
    with pytest.raises(StoreError, match="the store does not answer in time: check the network"):
        open_store(URL, {}, patience_s=0).read("object", 0, 500)


def test_a_store_that_cannot_be_reached(faulty: FaultyStore, open_store: Open) -> None:
    store = open_store(URL, faulty.environment, patience_s=0)
    faulty.close()
    with pytest.raises(StoreError, match=r"cannot be reached \(Connection refused\)") as caught:
        store.read("object", 0, 100)
    assert caught.value.kind == "unreachable"
    store = open_store(URL, {"AWS_ENDPOINT_URL": "https://store.invalid"}, patience_s=0)
    with pytest.raises(StoreError, match=r"cannot be reached \(failed to lookup address"):
        store.read("object", 0, 100)


def test_a_certificate_of_an_unknown_authority_is_named() -> None:
    text = (
        "Generic S3 error: Error performing GET https://host/b/o?sig=hidden in 5ms - HTTP error: "
        "error sending request\n\nDebug source:\nGeneric { source: HttpError {\n    kind: Connect,"
        "\n error: InvalidCertificate(\n    UnknownIssuer,\n), } }"
    )  # as obstore 0.12.1 has it
    error = explain(Exception(text), "s3://b/o")
    assert (error.kind, error.is_transient) == ("unknown", False)
    assert "TLS certificate is not valid (UnknownIssuer): if its authority is" in str(error)


def test_a_store_that_ignores_ranges(faulty: FaultyStore, open_store: Open) -> None:
    faulty.ignores_ranges = True
    for url in (URL, f"{faulty.endpoint}/bucket/prefix"):
        with pytest.raises(StoreError, match="the server ignores byte ranges and sends the whole"):
            open_store(url, faulty.environment).read("object", 0, 100)


def test_an_object_that_ends_early_is_another_one(faulty: FaultyStore, open_store: Open) -> None:
    with pytest.raises(StoreError, match=r"has changed \(it ends at byte 1,000\)") as caught:
        open_store(URL, faulty.environment).read("object", 990, 11)
    assert caught.value.kind == "changed"


def test_the_etag_is_asked_for_and_compared(faulty: FaultyStore, open_store: Open) -> None:
    store = open_store(URL, faulty.environment)
    etag = faulty.etag("bucket/prefix/object")
    store.read("object", 0, 10, etag=etag)
    assert faulty.requests[-1][2]["if-match"] == etag

    def ignore_condition(answer: Answer) -> Answer:
        return replace(answer, headers={**answer.headers, "ETag": '"other"'})

    faulty.fail("object", ignore_condition)
    with pytest.raises(StoreError, match=r'changed \(ETag "other", not "') as caught:
        store.read("object", 0, 10, etag=etag)
    assert caught.value.kind == "changed"


def test_a_weak_etag_is_compared_here(faulty: FaultyStore, open_store: Open) -> None:
    def weaken(answer: Answer) -> Answer:
        return replace(answer, headers={**answer.headers, "ETag": 'W/"weak"'})

    store = open_store(URL, faulty.environment)
    faulty.fail("object", weaken, weaken)
    etag = store.read("object", 0, 10).etag
    assert store.read("object", 0, 10, etag=etag).etag == 'W/"weak"'
    assert "if-match" not in faulty.requests[-1][2]
    with pytest.raises(StoreError, match="has changed"):
        store.read("object", 0, 10, etag=etag)


def test_a_refused_look_at_an_object_has_its_reason(faulty: FaultyStore, open_store: Open) -> None:
    store = open_store(URL, faulty.environment)
    assert store.head("object").size_bytes == 1000
    for fault, kind in (
        (refusal(400, "ExpiredToken"), "expired"),
        (refusal(404, "NoSuchBucket"), "gone"),
    ):
        faulty.fail("object", fault)
        with pytest.raises(StoreError) as caught:
            store.head("object")
        assert caught.value.kind == kind


def test_a_listing_goes_on_behind_a_fault(open_store: Open, retries: Retries) -> None:
    names = [f"{number:04}" for number in range(2503)]
    with FaultyStore({f"bucket/prefix/{name}": b"x" for name in names}) as faulty:
        store = open_store(URL, faulty.environment)
        pages = store.list()
        seen = [info.name for info in next(pages)]
        faulty.fail("bucket", status(503), reset)
        seen += [info.name for page in pages for info in page]
    assert seen == names
    assert retries == ["throttled", "reset"]


def test_sixty_four_requests_at_a_time_use_connections_again(
    faulty: FaultyStore, open_store: Open
) -> None:
    store = open_store(URL, faulty.environment)
    gate = threading.Event()
    faulty.fail("object", hold(gate), times=64)
    with ThreadPoolExecutor(64) as pool:
        first = [pool.submit(store.read, "object", n, 10) for n in range(64)]
        while len(faulty.requests) < 64:
            gate.wait(0.01)
        gate.set()
        again = [pool.submit(store.read, "object", n, 10) for n in range(64)]
    assert [bytes(read.result().data) for read in first + again] == [
        DATA[n : n + 10] for n in range(64)
    ] * 2
    assert 64 <= len(faulty.connections) < 128  # most were used again


# --- How it is opened -----------------------------------------------------------------------------


def test_plain_http_is_for_loopback_or_by_permission(open_store: Open) -> None:
    with pytest.raises(
        ConfigError, match=r"http://store\.example: use https, or set AWS_ALLOW_HTTP"
    ):
        open_store(URL, {"AWS_ENDPOINT_URL": "http://store.example"})
    open_store(URL, {"AWS_ALLOW_HTTP": "true"})
    with pytest.raises(ConfigError, match=r"http://store\.example/a: use https$"):
        open_store("http://store.example/a", {})


def test_without_the_extra_the_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"needs the package obstore.*\(the extra stores\)"):
        Store(StoreAddress.parse(URL))


@pytest.mark.parametrize(
    ("url", "environment", "line"),
    [
        ("az://container/a", {}, "az://container/a cannot be opened: Generic MicrosoftAzure error"),
        ("gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": "/gone.json"}, "Unable to open service"),
        (URL, {"AWS_CA_BUNDLE": "/gone.pem"}, "AWS_CA_BUNDLE /gone.pem: No such file"),
        (URL, {"AWS_PROFILE": "gone"}, r"config profile \(gone\) could not be found: check AWS_PR"),
        ("https://host:99999/a", {}, "cannot be opened: invalid port number"),
    ],
)
def test_a_wrong_environment_is_refused(
    open_store: Open, url: str, environment: dict[str, str], line: str
) -> None:
    with pytest.raises(ConfigError, match=line):
        open_store(url, environment)
