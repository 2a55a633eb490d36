"""One bucket or prefix of a store: ranges are read, objects looked at and listed.

The library underneath is obstore, an extra. Its own retries are off, so that each one is counted
with its reason; what fails for a reason that may pass is tried again with exponential backoff.

obstore runs its own threads: a process that has imported it must not fork (Feeder only spawns).
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from feeder.errors import ConfigError, StoreError
from feeder.installation import install_command
from feeder.process.backoff import Backoff
from feeder.store.address import StoreAddress, is_loopback
from feeder.store.faults import explain, store_error

if TYPE_CHECKING:
    from obstore import Bytes

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 10.0  # without a byte: a stalled transfer is given up and made again
TRANSFER_TIMEOUT_S: Final = 120.0  # all of a request: a piece of 16 MiB at 1 Mbit/s
CONNECTIONS_MAX: Final = (
    64  # kept idle for each host: as many requests as the fetcher has in flight
)
PAGE_OBJECTS: Final = 1000  # of a listing, as S3 sends them
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0

_T = TypeVar("_T")


class Fetched(NamedTuple):
    data: "Bytes | bytes"
    """A read-only buffer."""
    etag: str
    size_bytes: int
    """Of the whole object."""


class ObjectInfo(NamedTuple):
    name: str
    """Below the store's address; of a folder, with a "/" at its end."""
    size_bytes: int
    etag: str
    modified_ns: int


class Store:
    """The objects below an address. Threads may share it; calls block, without the GIL."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        on_retry: Callable[[str], None] = lambda kind: None,
        patience_s: float = 30.0,
    ) -> None:
        """Open it without a request; ConfigError for a bad configuration or without obstore.

        ``on_retry`` gets the kind of each error after which a request is made again, for
        ``patience_s`` seconds in all.
        """
        self.address = address
        self._on_retry = on_retry
        self._patience_s = patience_s
        self._objects = _open(address)

    def read(
        self, name: str, start: int = 0, size: int | None = None, *, etag: str = ""
    ) -> Fetched:
        """Return ``size`` bytes of an object from byte ``start``, or all that follow.

        StoreError, "changed" if the object has another ETag or ends before.
        """
        import obstore

        where = self.address.child(name).url
        options: dict[str, Any] = {}
        if size is not None:
            options["range"] = (start, start + size)
        elif start:
            options["range"] = {"offset": start}
        if etag and not etag.startswith("W/"):  # a weak one never matches (RFC 9110, 13.1.1)
            options["if_match"] = etag

        def fetch() -> Fetched:
            result = obstore.get(self._objects, name, options=options)
            whole_bytes, answer_etag = result.meta["size"], result.meta["e_tag"] or ""
            if etag and answer_etag != etag:
                raise store_error("changed", where, f"its ETag was {etag}, now {answer_etag}")
            end = whole_bytes if size is None else start + size
            if whole_bytes < end:
                raise store_error("changed", where, f"it ends at byte {whole_bytes:,}")
            data = result.bytes()
            if len(data) != end - start:
                raise store_error("short", where, f"{len(data):,} of {end - start:,} bytes")
            return Fetched(data, answer_etag, whole_bytes)

        return self._patiently(fetch, where)

    def head(self, name: str) -> ObjectInfo:
        """Return an object's size, ETag and time; StoreError."""
        import obstore

        where = self.address.child(name).url
        meta = self._patiently(lambda: obstore.head(self._objects, name), where)
        return _info(meta, name)

    def list(self, prefix: str = "", *, delimiter: bool = False) -> Iterator[list[ObjectInfo]]:
        """Yield the objects below a folder by pages; with ``delimiter``, only those directly in it,
        and its folders. StoreError; web servers have no listing.
        """
        import obstore

        where = self.address.child(prefix).url
        if self.address.scheme in ("https", "http"):
            raise StoreError(
                "unknown", f"{where}: web servers cannot be listed: name the files themselves"
            )
        if delimiter:
            listing = self._patiently(
                lambda: obstore.list_with_delimiter(self._objects, prefix or None), where
            )
            folders = [ObjectInfo(f"{name}/", 0, "", 0) for name in listing["common_prefixes"]]
            yield folders + [_info(meta) for meta in listing["objects"]]
            return
        last: str | None = None
        pages = None

        def next_page() -> Any:
            nonlocal pages
            if pages is None:  # also after an error: behind the last name that came
                pages = obstore.list(
                    self._objects, prefix or None, offset=last, chunk_size=PAGE_OBJECTS
                )
            try:
                return next(pages, None)
            except Exception:
                pages = None
                raise

        while (page := self._patiently(next_page, where)) is not None:
            last = page[-1]["path"]
            yield [_info(meta) for meta in page]

    def _patiently(self, call: Callable[[], _T], where: str) -> _T:
        import obstore.exceptions

        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                return call()
            except StoreError as error:
                fault = error
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                fault = explain(error, where)
            wait_s = backoff.next_s() * random.uniform(0.5, 1.5)
            if not fault.is_transient or time.monotonic() + wait_s > deadline_s:
                raise fault from None
            self._on_retry(fault.kind)
            time.sleep(wait_s)


def _info(meta: Any, name: str = "") -> ObjectInfo:
    modified = meta["last_modified"]
    seconds, microseconds = int(modified.timestamp()), modified.microsecond
    return ObjectInfo(
        name or meta["path"],
        meta["size"],
        meta["e_tag"] or "",
        seconds * 1_000_000_000 + microseconds * 1000,
    )


def _open(address: StoreAddress) -> Any:
    try:
        from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store
    except ImportError:
        raise ConfigError(
            f"{address} needs the package obstore, which is not installed: "
            f"`{install_command('stores')}` (the extra stores)"
        ) from None
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "read_timeout": timedelta(seconds=READ_TIMEOUT_S),
        "timeout": timedelta(seconds=TRANSFER_TIMEOUT_S),
        "pool_max_idle_per_host": str(CONNECTIONS_MAX),
        "allow_http": _allows_http(address),
    }
    settings = {"client_options": options, "retry_config": {"max_retries": 0}}
    if address.scheme in ("https", "http"):
        return HTTPStore(address.url, **settings)
    kind = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[address.scheme]
    return kind(address.bucket, prefix=address.path or None, **settings)


def _allows_http(address: StoreAddress) -> bool:
    """Whether plain HTTP may be used; ConfigError where the endpoint needs it and it may not."""
    if address.scheme in ("https", "http"):
        endpoint, allow = address.url, ""
    else:
        prefix = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[address.scheme]
        allow = f"{prefix}_ALLOW_HTTP"
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS[address.scheme])), "")
    if not endpoint.startswith("http://"):
        return False
    if is_loopback(urlsplit(endpoint).netloc):
        return True
    if os.environ.get(allow, "").lower() in ("1", "true", "on", "yes"):
        return True
    remedy = f"use https, or set {allow}=true" if allow else "use https"
    raise ConfigError(f"{address} would be read over plain http ({endpoint}): {remedy}")


_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
