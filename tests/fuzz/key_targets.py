"""Key files, and the requests by which libzmq authenticates a connecting client (ZAP)."""

import random
from collections.abc import Callable
from typing import Any

from zmq.utils import z85

from feeder.errors import ConfigError, ProtocolError
from feeder.security.keys import (
    KEYS_MAX,
    PublicKey,
    SecretKey,
    format_public_key,
    format_secret_key,
    parse_public_keys,
    parse_secret_key,
)
from feeder.wire.zap import ZapRequest, format_answer, parse_request
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.target import Target, reads

_SECRETS = tuple(
    SecretKey(name, z85.encode(bytes(range(first, first + 32))).decode())
    for first, name in enumerate(("a", "trainer-7", "x" * 60))
)
_PUBLIC_FILES = tuple(format_public_key(key.public()).encode() for key in _SECRETS)
_FILES = (*(format_secret_key(key).encode() for key in _SECRETS), *_PUBLIC_FILES)
_TOKENS = (
    *(b"#", b"\n", b"\r\n", b" ", b"\t", b"\0", b"\xff", b"\xc2\x9b", b"feeder-public-key"),
    *(key.text.encode() for key in _SECRETS),
    *(b"x" * 40, b"x" * 39, b"%" * 40, b"~" * 40, b"\n" * 2000, b"a " * 2000),
)
_ZAP = (b"peer", b"", b"1.0", b"7", b"feeder", b"192.0.2.7", b"", b"CURVE", bytes(range(32)))


def _secret(rng: random.Random) -> bytes:
    return mutate_bytes(rng, rng.choice(_FILES), tokens=_TOKENS, others=_FILES)


def _reads_keys(
    parse: Callable[[bytes, str], Any], holds: Callable[[Any, bytes], None]
) -> Callable[[bytes], bool]:
    def read(data: bytes) -> Any:
        try:
            return parse(data, "file")
        except ConfigError as error:
            if any(key.text in str(error) for key in _SECRETS):
                raise RuntimeError("the error quotes a secret") from error
            raise

    return reads(read, ConfigError, holds)


def _hold_secret(key: SecretKey, _: bytes) -> None:
    assert parse_secret_key(format_secret_key(key).encode(), "again") == key
    assert key.text not in repr(key)


def _publics(rng: random.Random) -> bytes:
    text = b"".join(rng.choice(_PUBLIC_FILES) for _ in range(rng.randint(1, 4)))
    return mutate_bytes(rng, text, tokens=_TOKENS, others=_FILES)


def _hold_publics(keys: tuple[PublicKey, ...], _: bytes) -> None:
    assert len(keys) <= KEYS_MAX
    for key in keys:
        (again,) = parse_public_keys(format_public_key(key).encode(), "again")
        assert again == key


def _zap(rng: random.Random) -> list[bytes]:
    tokens = (b"", b"\xff" * 300, b"NULL", b"\0" * 32)
    frames = [
        mutate_bytes(rng, frame, tokens=tokens) if rng.random() < 0.2 else frame for frame in _ZAP
    ]
    if rng.random() < 0.3:
        frames.insert(rng.randrange(len(frames) + 1), rng.choice((b"", b"x" * 5000)))
    if rng.random() < 0.3:
        del frames[rng.randrange(len(frames))]
    return frames


def _hold_zap(request: ZapRequest, _: list[bytes]) -> None:
    assert request.address.isprintable()
    answer = format_answer(request, 400)
    assert answer[: len(request.envelope)] == list(request.envelope)


TARGETS = (
    Target("secret-key-file", _secret, _reads_keys(parse_secret_key, _hold_secret), 20_000),
    Target("public-key-file", _publics, _reads_keys(parse_public_keys, _hold_publics), 20_000),
    Target("zap-request", _zap, reads(parse_request, ProtocolError, _hold_zap), 20_000),
)
