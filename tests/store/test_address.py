"""Addresses of stores: what is one, what it names, and what is refused without quoting secrets."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.store.address import StoreAddress, is_loopback, is_remote


@pytest.mark.parametrize(
    ("text", "url", "bucket", "path"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b", "bucket", "a/b"),
        ("S3://bucket/a/b//", "s3://bucket/a/b", "bucket", "a/b"),
        ("gs://bucket", "gs://bucket", "bucket", ""),
        ("az://$root/a b?#%41", "az://$root/a b?#%41", "$root", "a b?#%41"),
        ("https://Host.example:9000/A/", "https://host.example:9000/A", "host.example:9000", "A"),
        ("http://[::1]:80/a", "http://[::1]:80/a", "[::1]:80", "a"),
    ],
)
def test_an_address_has_a_canonical_url(text: str, url: str, bucket: str, path: str) -> None:
    address = StoreAddress.parse(text)
    assert is_remote(text)
    assert (str(address), address.bucket, address.path) == (url, bucket, path)
    assert StoreAddress.parse(address.url) == address


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("/data/s3://x", "it begins with s3://"),
        ("file:///data", "it begins with s3://"),
        ("s3:///key", "names no bucket: write s3://BUCKET/PREFIX"),
        ("az://a b/c", "names no container: write az://CONTAINER/PREFIX"),
        ("https://", "names no host: write https://HOST/PREFIX"),
        ("s3://bucket/a//b", "an empty name"),
        ("s3://bucket/a/../b", "a dot for a name"),
        ("s3://bucket/a\nb", "an unprintable character"),
        ("s3://bucket/" + 1100 * "a", "longer than any key"),
        ("https://user:secret@host/a", "an address at https:// has an @"),
        ("https://host/a?sig=secret", "an address at https:// has an @, a query or a fragment"),
        ("s3://key:secret@bucket/a", "credentials come from the environment"),
    ],
)
def test_what_is_no_address_is_refused_in_a_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreAddress.parse(text)
    assert line in str(caught.value)
    assert "secret" not in str(caught.value)


def test_names_below_an_address() -> None:
    address = StoreAddress.parse("s3://bucket/a")
    assert address.child("b/c").url == "s3://bucket/a/b/c"
    assert (address.child("b/c").name, address.name) == ("c", "a")
    assert StoreAddress.parse("s3://bucket").child("b").url == "s3://bucket/b"
    assert StoreAddress.parse("s3://bucket").name == "bucket"


@pytest.mark.parametrize("location", ["", "data", "/data", "s3:/x", "ftp://x", "c://x", "./s3://x"])
def test_other_locations_are_local(location: str) -> None:
    assert not is_remote(location)


def test_loopback_is_recognised() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_loopback, ("localhost.example", "128.0.0.1", "::2", "", None)))


@given(st.text(), st.sampled_from(["s3", "gs", "az", "https", "http"]))
def test_any_text_is_an_address_or_refused(text: str, scheme: str) -> None:
    with contextlib.suppress(ConfigError):
        address = StoreAddress.parse(f"{scheme}://{text}")
        assert StoreAddress.parse(address.url) == address
        assert address.child("name").name == "name"
