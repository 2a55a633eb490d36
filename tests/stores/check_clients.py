"""``feeder.store`` with Azure and Google Cloud Storage: listed, read, changed, refused."""

import pytest

from feeder.errors import StoreError
from feeder.store.address import StoreAddress
from feeder.store.client import Store
from tests.stores.conftest import DATA
from tests.stores.emulators import Emulator


@pytest.fixture
def store(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, text in emulator.environ.items():
        monkeypatch.setenv(name, text)
    return Store(StoreAddress.parse(emulator.url("set")), patience_s=0.0)


def test_ranges_are_read(store: Store) -> None:
    whole = store.read("shard-00000.fds")
    assert bytes(whole.data) == DATA
    part = store.read("shard-00000.fds", 1000, 500, etag=whole.etag)
    assert (bytes(part.data), part.etag, part.size_bytes) == (
        DATA[1000:1500],
        whole.etag,
        len(DATA),
    )


def test_a_listing_agrees_with_the_objects(store: Store) -> None:
    listed = {info.name: info for page in store.list() for info in page}
    assert sorted(listed) == ["manifest.json", "more/a b+c.jpg", "shard-00000.fds"]
    for name, info in listed.items():
        head = store.head(name)
        assert (info.size_bytes, info.etag) == (head.size_bytes, head.etag)
        assert bytes(store.read(name, etag=info.etag).data) == bytes(store.read(name).data)
    (folder,) = store.list("more", delimiter=True)
    assert [info.name for info in folder] == ["more/a b+c.jpg"]


def test_an_object_that_was_replaced_is_named(emulator: Emulator, store: Store) -> None:
    emulator.put("set/replaced", b"as it was")
    before = store.read("replaced")
    emulator.put("set/replaced", b"as it is now")
    with pytest.raises(StoreError, match=f"^{emulator.url('set/replaced')}") as caught:
        store.read("replaced", 0, 4, etag=before.etag)
    assert caught.value.kind == "changed"


def test_what_is_gone_is_said_to_be(emulator: Emulator, store: Store) -> None:
    with pytest.raises(StoreError) as caught:
        store.read("shard-00001.fds", 0, 4)
    assert caught.value.kind == "gone"
    with pytest.raises(StoreError) as caught:
        Store(StoreAddress.parse(f"{emulator.scheme}://no-such-bucket/set")).head("manifest.json")
    assert caught.value.kind == "gone"


def test_wrong_credentials_are_denied(
    emulator: Emulator, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not emulator.wrong:
        pytest.skip(f"{emulator.scheme}: this emulator checks no credentials")
    for name, text in emulator.wrong.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(StoreError) as caught:
        Store(store.address).head("manifest.json")
    assert caught.value.kind == "denied"
