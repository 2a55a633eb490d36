"""Key files, and the requests by which libzmq authenticates a connecting client (ZAP)."""

import random

from zmq.utils import z85

from feeder.errors import ConfigError, ProtocolError
from feeder.security.keys import (
    KEYS_MAX,
    SecretKey,
    format_public_key,
    format_secret_key,
    parse_public_keys,
    parse_secret_key,
)
from feeder.wire.zap import format_answer, parse_request
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.target import Target

_SECRETS = tuple(
    SecretKey(name, z85.encode(bytes(range(first, first + 32))).decode())
    for first, name in enumerate(("a", "trainer-7", "x" * 60))
)
_SECRET_FILES = tuple(format_secret_key(key).encode() for key in _SECRETS)
_PUBLIC_FILES = tuple(format_public_key(key.public()).encode() for key in _SECRETS)
_TOKENS = (
    *(b"#", b"\n", b"\r\n", b" ", b"\t", b"\0", b"\xff", b"\xc2\x9b", b"feeder-public-key"),
    *(key.text.encode() for key in _SECRETS),
    *(b"x" * 40, b"x" * 39, b"%" * 40, b"~" * 40, b"\n" * 2000, b"a " * 2000),
)
_ZAP = (
    b"peer",
    b"",
    b"1.0",
    b"7",
    b"feeder",
    b"192.0.2.7",
    b"",
    b"CURVE",
    bytes(range(32)),
)


def _refuses(error: Exception) -> bool:
    text = str(error)
    assert text.isprintable(), repr(text[:500])
    assert len(text) < 1000, len(text)
    for secret in _SECRETS:
        assert secret.text not in text, "the error quotes a secret"
    return False


def _secret(rng: random.Random) -> bytes:
    text = rng.choice(_SECRET_FILES + _PUBLIC_FILES)
    return mutate_bytes(rng, text, tokens=_TOKENS, others=_SECRET_FILES + _PUBLIC_FILES)


def _check_secret(data: bytes) -> bool:
    """A key that survives a round trip, or ConfigError that quotes no secret."""
    try:
        key = parse_secret_key(data, "file")
    except ConfigError as error:
        return _refuses(error)
    assert parse_secret_key(format_secret_key(key).encode(), "again") == key
    assert key.text not in repr(key)
    return True


def _publics(rng: random.Random) -> bytes:
    text = b"".join(rng.choice(_PUBLIC_FILES) for _ in range(rng.randint(1, 4)))
    return mutate_bytes(rng, text, tokens=_TOKENS, others=_SECRET_FILES + _PUBLIC_FILES)


def _check_publics(data: bytes) -> bool:
    """Keys with different names and texts, or ConfigError."""
    try:
        keys = parse_public_keys(data, "file")
    except ConfigError as error:
        return _refuses(error)
    assert len(keys) <= KEYS_MAX
    for key in keys:
        (again,) = parse_public_keys(format_public_key(key).encode(), "again")
        assert again == key
    return True


def _zap(rng: random.Random) -> list[bytes]:
    frames = [
        mutate_bytes(rng, frame, tokens=(b"", b"\xff" * 300, b"NULL", b"\0" * 32))
        if rng.random() < 0.2
        else frame
        for frame in _ZAP
    ]
    if rng.random() < 0.3:
        frames.insert(rng.randrange(len(frames) + 1), rng.choice((b"", b"x" * 5000)))
    if rng.random() < 0.3:
        del frames[rng.randrange(len(frames))]
    return frames


def _check_zap(frames: list[bytes]) -> bool:
    """A request that can be answered, or ProtocolError."""
    try:
        request = parse_request(frames)
    except ProtocolError as error:
        return _refuses(error)
    assert request.address.isprintable()
    answer = format_answer(request, 400)
    assert answer[: len(request.envelope)] == list(request.envelope)
    return True


TARGETS = (
    Target(name="secret-key-file", make=_secret, check=_check_secret, inputs=20_000),
    Target(name="public-key-file", make=_publics, check=_check_publics, inputs=20_000),
    Target(name="zap-request", make=_zap, check=_check_zap, inputs=20_000),
)
