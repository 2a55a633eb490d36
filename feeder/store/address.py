"""Where a store's objects are: s3://BUCKET/PREFIX, gs://, az://CONTAINER/PREFIX, https://HOST/PATH."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from feeder.errors import ConfigError
from feeder.process.path_text import printable

_SCHEME: Final = re.compile(r"(s3|gs|az|https|http)://", re.IGNORECASE)
_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,254}")
_HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_CHARACTERS_MAX: Final = 1024  # the longest key of S3 and GCS


def is_remote(text: str) -> bool:
    """Return whether a location is a store's and not a local path."""
    return _SCHEME.match(text) is not None


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A folder of objects, or an object; as text, its URL."""

    scheme: str
    """s3, gs, az, https or http."""
    bucket: str
    """The bucket or container; of http and https, the host and its port."""
    path: str
    """Names separated by "/"; "" is the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what the user wrote; ConfigError if it names no store."""
        match = _SCHEME.match(text)
        shown = printable(text[:_CHARACTERS_MAX])
        if match is None:
            raise ConfigError(
                f"{shown} is no address of a store: write s3://, gs://, az:// or https:// before it"
            )
        scheme = match[1].lower()
        bucket, _, path = text[match.end() :].partition("/")
        if "@" in bucket:  # not quoted: what is before the @ may be a password
            raise ConfigError(
                f"an address at {scheme}:// has credentials or an @ in it: leave them out; "
                "credentials come from the environment"
            )
        if scheme in ("https", "http"):
            bucket = _check_host(bucket.lower(), shown)
            if "?" in path or "#" in path:
                url = shown.partition("?")[0].partition("#")[0]  # a query may be a signature
                raise ConfigError(
                    f"{url} has a query or a fragment, which would be missing from the addresses "
                    "of the files below it: leave it out"
                )
        elif not _BUCKET.fullmatch(bucket):
            what = "container" if scheme == "az" else "bucket"
            raise ConfigError(f"{shown} names no {what}: write {scheme}://{what.upper()}/PREFIX")
        names = path.strip("/").split("/") if path.strip("/") else []
        if any(name in ("", ".", "..") or not name.isprintable() for name in names):
            raise ConfigError(
                f"{shown} has an empty name, a . or .. or an unprintable character in its path: "
                "write the prefix as the store lists it"
            )
        if len(text) > _CHARACTERS_MAX:
            raise ConfigError(f"{shown}… is longer than any key of a store: check it")
        return cls(scheme, bucket, "/".join(names))

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the path; the bucket if it has none."""
        return self.path.rpartition("/")[2] or self.bucket

    @property
    def is_loopback(self) -> bool:
        """Whether the host of an http or https address is this machine."""
        return is_loopback(self.bucket)

    def child(self, name: str) -> Self:
        """Return the address of an object below this one, by its name or path."""
        return type(self)(self.scheme, self.bucket, f"{self.path}/{name}".strip("/"))

    def __str__(self) -> str:
        return self.url


def is_loopback(host_and_port: str) -> bool:
    host = host_and_port.rpartition(":")[0] if host_and_port[-1:] != "]" else host_and_port
    host = (host or host_and_port).strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _check_host(text: str, shown: str) -> str:
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match[2] or 1) < 65536:
        raise ConfigError(
            f"{shown} names no host: write https://HOST/PATH or https://HOST:PORT/PATH"
        )
    if match[1][0] == "[":
        try:
            ipaddress.IPv6Address(match[1][1:-1])
        except ValueError:
            raise ConfigError(f"{shown} has no IPv6 address in its brackets: check it") from None
    return text
