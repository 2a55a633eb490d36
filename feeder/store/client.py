"""One bucket or prefix of a store: reads ranges of objects, looks at objects, lists them.

obstore makes the requests. Its own retries are off, so that each retry is counted with its reason:
transient faults are retried here, with exponential backoff and jitter.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from feeder.errors import StoreError
from feeder.process.backoff import Backoff
from feeder.process.path_text import printable
from feeder.store.address import WEB, StoreAddress
from feeder.store.connect import connect
from feeder.store.faults import explain, store_error

if TYPE_CHECKING:
    from obstore import Bytes

PAGE_OBJECTS: Final = 1000  # of a listing, as S3 sends them
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0

_T = TypeVar("_T")


class Fetched(NamedTuple):
    data: "Bytes | bytes"
    """A read-only buffer."""
    etag: str
    """"" if the store has none."""
    size_bytes: int
    """Of the whole object."""


class ObjectInfo(NamedTuple):
    name: str
    """Below the store's address; that of a folder ends with "/"."""
    size_bytes: int
    etag: str
    modified_ns: int


class Store:
    """The objects below an address. Threads may share it; its calls block, without the GIL."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        on_retry: Callable[[str], None] = lambda reason: None,
        patience_s: float = 30.0,
    ) -> None:
        """Open it, without a request; ConfigError if obstore is missing or the environment wrong.

        ``on_retry`` gets the reason of each request that is made again, a StoreError's kind, and
        "credentials" for a refresh of them that failed; from any thread that uses the store. No
        retry starts after ``patience_s``.
        """
        self.address = address
        self._on_retry = on_retry
        self._patience_s = patience_s
        self._make, self._credentials = connect(address, lambda: on_retry("credentials"))
        self._objects = self._make()

    @property
    def credentials_expire_s(self) -> float | None:
        """When the credentials expire, in seconds since the epoch; None: unknown, or never."""
        found = self._credentials and self._credentials.found
        return found.expires_s if found else None

    def read(
        self, name: str, start: int = 0, size: int | None = None, *, etag: str = ""
    ) -> Fetched:
        """Return ``size`` bytes of an object from byte ``start`` on, or all that follow.

        With ``etag``, only if the object still has it. StoreError; "changed" if the object ends
        before, too.
        """
        import obstore

        where = self._where(name)
        if size == 0:  # for which HTTP has no range
            info = self.head(name)
            return Fetched(b"", info.etag, info.size_bytes)
        options: dict[str, Any] = {}
        if size is not None:
            options["range"] = (start, start + size)
        elif start:
            options["range"] = {"offset": start}
        if etag and not etag.startswith("W/"):  # a weak one never matches (RFC 9110, 13.1.1)
            options["if_match"] = etag

        def get() -> Fetched:
            result = obstore.get(self._objects, name, options=options)
            meta = result.meta  # made at each use
            whole_bytes, answered_etag = meta["size"], _etag(meta)
            if etag and answered_etag != etag:
                raise store_error("changed", where, f"ETag {answered_etag}, not {etag}")
            end = whole_bytes if size is None else start + size
            if whole_bytes < end:
                raise store_error("changed", where, f"it ends at byte {whole_bytes:,}")
            data = result.bytes()
            if len(data) != end - start:
                raise store_error("short", where, f"{len(data):,} of {end - start:,} bytes")
            return Fetched(data, answered_etag, whole_bytes)

        return self._patiently(get, where)

    def head(self, name: str) -> ObjectInfo:
        """Return an object's size, ETag and time; StoreError."""
        import obstore

        def get() -> Any:
            # Not HEAD, whose answers have no body and so no reason for a refusal.
            return obstore.get(self._objects, name, options={"range": (0, 1)}).meta

        try:
            meta = self._patiently(get, self._where(name))
        except StoreError as error:
            if error.kind not in ("changed", "unknown"):
                raise
            # An empty object has no first byte: status 416, from some servers 200.
            meta = self._patiently(lambda: obstore.head(self._objects, name), self._where(name))
            if meta["size"]:
                raise error from None
        return _info(meta, name)

    def list(self, prefix: str = "", *, delimiter: bool = False) -> Iterator[list[ObjectInfo]]:
        """Yield the objects below a folder by pages, in the order of their names; StoreError.

        With ``delimiter`` there is one page, of the objects directly in it and its folders. Web
        servers have no listing.
        """
        import obstore

        where = self._where(prefix)
        if self.address.scheme in WEB:
            raise StoreError("unknown", f"{where}: a web server has no listing: name the files")
        if delimiter:
            listing = self._patiently(
                lambda: obstore.list_with_delimiter(self._objects, prefix or None), where
            )
            folders = [ObjectInfo(f"{name}/", 0, "", 0) for name in listing["common_prefixes"]]
            yield folders + [_info(meta) for meta in listing["objects"]]
            return
        pages: Iterator[Any] | None = None
        last: str | None = None

        def next_page() -> Any:
            nonlocal pages
            try:
                if pages is None:
                    pages = obstore.list(
                        self._objects, prefix or None, offset=last, chunk_size=PAGE_OBJECTS
                    )
                return next(pages, None)
            except Exception:
                pages = None  # the next attempt goes on behind the last name that came
                raise

        while page := self._patiently(next_page, where):
            last = page[-1]["path"]
            yield [_info(meta) for meta in page]

    def _where(self, name: str) -> str:
        return printable(self.address.child(name).url)

    def _patiently(self, call: Callable[[], _T], where: str) -> _T:
        import obstore.exceptions

        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        deadline_s = time.monotonic() + self._patience_s
        may_replace = self._credentials is not None
        while True:
            found = None
            try:
                if self._credentials is not None:
                    self._credentials.refresh()
                    found = self._credentials.found
                return call()
            except StoreError as error:
                fault = error
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                fault = explain(error, where)
            if fault.kind in ("expired", "denied") and found is not None and may_replace:
                may_replace = False
                assert self._credentials is not None
                if self._credentials.replace(found):
                    self._objects = self._make()  # obstore keeps credentials until they are due
                    self._on_retry(fault.kind)
                    continue
            wait_s = backoff.next_s() * random.uniform(0.5, 1.5)
            if not fault.is_transient or time.monotonic() + wait_s > deadline_s:
                raise fault from None
            self._on_retry(fault.kind)
            time.sleep(wait_s)


def _info(meta: Any, name: str = "") -> ObjectInfo:
    modified = meta["last_modified"]
    modified_ns = int(modified.timestamp()) * 1_000_000_000 + modified.microsecond * 1000
    return ObjectInfo(name or meta["path"], meta["size"], _etag(meta), modified_ns)


def _etag(meta: Any) -> str:
    """Return an object's ETag with its quotes, which listings of Azure and Google leave out."""
    etag = meta["e_tag"] or ""
    return etag if not etag or etag.endswith('"') else f'"{etag}"'
