"""Where a store's objects are: s3://BUCKET/PREFIX, gs://…, az://CONTAINER/PREFIX, https://HOST/PATH."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from feeder.errors import ConfigError
from feeder.process.path_text import printable

WEB: Final = frozenset({"https", "http"})
"""The schemes of web servers, which have no listing."""

_SCHEME: Final = re.compile(r"(s3|gs|az|https|http)://", re.IGNORECASE)
_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,254}")
_HOST: Final = re.compile(r"([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(:[0-9]{1,5})?")
_CHARACTERS_MAX: Final = 1024  # of the longest key of S3 and GCS


def is_remote(text: str) -> bool:
    """Return whether a location is in a store, and no local path."""
    return _SCHEME.match(text) is not None


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A folder of objects, or one object; as text, its URL."""

    scheme: str
    """s3, gs, az, https or http."""
    bucket: str
    """The bucket or container; of http and https, the host and its port."""
    path: str
    """Names separated by "/"; "" is the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what the user wrote; ConfigError if it is no address, or has credentials in it."""
        match = _SCHEME.match(text)
        shown = printable(text[:_CHARACTERS_MAX])
        if match is None:
            raise ConfigError(
                f"{shown} is no address of a store: it begins with s3://, gs://, az:// or https://"
            )
        scheme = match[1].lower()
        bucket, _, path = text[match.end() :].partition("/")
        is_web = scheme in WEB
        if "@" in bucket or (is_web and re.search(r"[?#]", text)):
            # Not quoted: what is before the @ may be a password, and a query a signature.
            raise ConfigError(
                f"an address at {scheme}:// has an @, a query or a fragment: leave it out; "
                "credentials come from the environment"
            )
        if is_web:
            bucket = bucket.lower()
        if not (_HOST if is_web else _BUCKET).fullmatch(bucket):
            what = "HOST" if is_web else "CONTAINER" if scheme == "az" else "BUCKET"
            raise ConfigError(f"{shown} names no {what.lower()}: write {scheme}://{what}/PREFIX")
        path = path.strip("/")
        names = path.split("/") if path else []
        if not path.isprintable() or not {"", ".", ".."}.isdisjoint(names):
            raise ConfigError(
                f"{shown} has an empty name, a dot for a name or an unprintable character: write "
                "the path as the store lists it"
            )
        if len(text) > _CHARACTERS_MAX:
            raise ConfigError(f"{shown}… is longer than any key of a store: check it")
        return cls(scheme, bucket, path)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the path, or the bucket."""
        return self.path.rpartition("/")[2] or self.bucket

    def child(self, name: str) -> Self:
        """Return the address of what is below this folder, by its name or path."""
        return type(self)(self.scheme, self.bucket, f"{self.path}/{name}".strip("/"))

    def __str__(self) -> str:
        return self.url


def is_loopback(host: str | None) -> bool:
    """Whether the host of a URL, without port and brackets, is this machine."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"
