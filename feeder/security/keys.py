"""Key files (CURVE), which identify a feeder or a client: parsing, reading and checking.

    # a comment; blank lines are allowed too
    feeder-secret-key NAME KEY        a secret key file: this one line
    feeder-public-key NAME KEY        a public key file: as many of these lines as there are keys

KEY is 40 characters of Z85 (ZeroMQ RFC 32), NAME 1 .. 64 letters, digits, dots, hyphens and
underscores. A public key is computed from the secret one where needed. Public key files can be
joined with ``cat``.

Invariant: ``parse_*`` either returns well-formed keys or raises ConfigError, whatever the bytes
are, and no part of a key is in an error or in a SecretKey's repr.
"""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from feeder.errors import ConfigError
from feeder.process.regular_file import read_private, read_regular

KEY_FILE_BYTES_MAX: Final = 256 * 1024
"""A thousand client keys take half as much."""
KEYS_MAX: Final = 1024
PUBLIC_SUFFIX: Final = ".pub"
KEY_CHARS: Final = 40

_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET: Final = "feeder-secret-key"
_PUBLIC: Final = "feeder-public-key"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key (Z85) with its owner's name."""

    name: str
    text: str

    @property
    def raw(self) -> bytes:
        """The key's 32 bytes."""
        raw = decode_z85(self.text)
        assert raw is not None, "checked when the key was read"
        return raw


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """A secret key (Z85), never shown, with its owner's name."""

    name: str
    text: str

    def __repr__(self) -> str:
        return f"SecretKey({self.name!r}, …)"

    def public(self) -> PublicKey:
        """Return its public key."""
        return PublicKey(self.name, zmq.curve_public(self.text.encode()).decode())


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """A client's keys for tcp: the feeder's public key and its own secret key."""

    server: PublicKey
    own: SecretKey


def is_key_name(name: str) -> bool:
    """Return whether a key can have this name."""
    return _NAME.fullmatch(name) is not None


def decode_z85(text: str) -> bytes | None:
    """Return the 32 bytes of a key in Z85; None when it is not a key."""
    if len(text) != KEY_CHARS or any(character not in _Z85 for character in text):
        return None
    raw = bytearray()
    for start in range(0, KEY_CHARS, 5):
        value = 0
        for character in text[start : start + 5]:
            value = value * 85 + _Z85.index(character)
        if value >= 1 << 32:
            return None
        raw += value.to_bytes(4, "big")
    return bytes(raw)


def format_secret_key(key: SecretKey) -> str:
    """Return the contents of a secret key file."""
    return (
        "# Feeder: a secret key. Anyone with a copy can pose as its owner: keep it private.\n"
        f"{_SECRET} {key.name} {key.text}\n"
    )


def format_public_key(key: PublicKey) -> str:
    """Return the contents of a public key file."""
    return f"{_PUBLIC} {key.name} {key.text}\n"


def parse_secret_key(data: bytes, where: str) -> SecretKey:
    """Return the key of a secret key file; ``where`` names it in ConfigError."""
    lines = _parse_lines(data, where)
    if len(lines) != 1 or lines[0][0] != _SECRET:
        what = "a public key" if lines and lines[0][0] == _PUBLIC else "not one secret key"
        raise ConfigError(
            f"{where} holds {what}: a secret key file is what `feeder keygen` writes without "
            f"{PUBLIC_SUFFIX}"
        )
    return SecretKey(*lines[0][1:])


def parse_public_keys(data: bytes, where: str) -> tuple[PublicKey, ...]:
    """Return the keys of a public key file, all names and keys distinct.

    ``where`` names the file in ConfigError.
    """
    keys: list[PublicKey] = []
    for number, (kind, name, text) in enumerate(_parse_lines(data, where), 1):
        if kind == _SECRET:
            raise ConfigError(
                f"{where} holds the secret key of {name}, where public keys belong: use the file "
                f"{PUBLIC_SUFFIX}, and make a new key if others have seen this one"
            )
        if number > KEYS_MAX:
            raise ConfigError(f"{where} holds more than {KEYS_MAX} keys: take some out")
        keys.append(PublicKey(name, text))
    return check_distinct(keys, where)


def check_distinct(keys: Sequence[PublicKey], where: str) -> tuple[PublicKey, ...]:
    """Return the keys; ConfigError where two have the same name or two names the same key."""
    names: dict[str, str] = {}
    texts: dict[str, str] = {}
    for key in keys:
        if key.name in names:
            raise ConfigError(f"{where}: the name {key.name} has two keys: take one out")
        if key.text in texts:
            raise ConfigError(
                f"{where}: {texts[key.text]} and {key.name} have the same key: take one out, or "
                "make another with `feeder keygen`"
            )
        names[key.name] = texts[key.text] = key.name
    return tuple(keys)


def read_secret_key(path: Path) -> SecretKey:
    """Return the secret key in a file that only this process's user, or root, owns and can read.

    Raises ConfigError with what is wrong and what to do.
    """
    try:
        data = read_private(path, KEY_FILE_BYTES_MAX + 1, "the secret key")
    except OSError as error:
        raise _unreadable(path, error) from None
    return parse_secret_key(data, str(path))


def find_public_key_files(path: Path) -> list[Path]:
    """Return the files NAME.pub of a folder, sorted; or the path itself if it is not a folder.

    Raises OSError where it does not exist or cannot be read.
    """
    if not stat.S_ISDIR(path.stat().st_mode):
        return [path]
    return [path / name for name in sorted(os.listdir(path)) if name.endswith(PUBLIC_SUFFIX)]


def read_public_keys(path: Path) -> tuple[PublicKey, ...]:
    """Return the keys of a public key file, or of all files NAME.pub in a folder.

    Raises ConfigError with what is wrong and what to do.
    """
    try:
        files = find_public_key_files(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    keys: list[PublicKey] = []
    for each in files:
        keys += parse_public_keys(_read(each), str(each))
        if len(keys) > KEYS_MAX:
            raise ConfigError(f"{path} holds more than {KEYS_MAX} keys: take some out")
    return check_distinct(keys, str(path))


def read_client_keys(
    server_key: str | os.PathLike[str] | None, client_key: str | os.PathLike[str] | None
) -> ClientKeys | None:
    """Return a client's keys, given the feeder's public key (file or Z85) and a secret key file.

    None where neither is given; ConfigError where only one is, or a file is invalid.
    """
    if server_key is None and client_key is None:
        return None
    if server_key is None or client_key is None:
        raise ConfigError(
            "server_key (the feeder's public key) and client_key (the file of your secret key) "
            "belong together: give both or neither"
        )
    return ClientKeys(_server_key(server_key), read_secret_key(Path(client_key)))


def _server_key(given: str | os.PathLike[str]) -> PublicKey:
    path = Path(given)
    if isinstance(given, str) and decode_z85(given) is not None and not path.exists():
        return PublicKey("feeder", given)
    keys = read_public_keys(path)
    if len(keys) != 1:
        raise ConfigError(f"{path} holds {len(keys)} keys: server_key must be the feeder's alone")
    return keys[0]


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, KEY_FILE_BYTES_MAX + 1)  # parsing refuses a longer one
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the key file {path} cannot be read: {error.strerror}; `feeder keygen` makes one"
    )


def _parse_lines(data: bytes, where: str) -> list[tuple[str, str, str]]:
    """Return (kind, name, key) of each line that is not blank or a comment."""
    if len(data) > KEY_FILE_BYTES_MAX:
        raise ConfigError(
            f"{where} is larger than {KEY_FILE_BYTES_MAX} bytes: it is not a key file"
        )
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is not a key file: `feeder keygen` makes one") from None
    found: list[tuple[str, str, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if (
            len(words) != 3
            or words[0] not in (_SECRET, _PUBLIC)
            or not is_key_name(words[1])
            or decode_z85(words[2]) is None
        ):
            raise ConfigError(
                f"{where}:{number} is neither `{_PUBLIC} NAME KEY` nor `{_SECRET} NAME KEY`: "
                "`feeder keygen` makes such files"
            )
        found.append((words[0], words[1], words[2]))
    return found
