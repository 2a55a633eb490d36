"""Key files: read strictly, private to their owner, never shown; ``feeder keygen``."""

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from feeder.errors import ConfigError
from feeder.security.keys import (
    KEY_FILE_BYTES_MAX,
    KEYS_MAX,
    PublicKey,
    SecretKey,
    decode_z85,
    format_public_key,
    format_secret_key,
    parse_public_keys,
    parse_secret_key,
    read_client_keys,
    read_public_keys,
    read_secret_key,
)
from tests.support.sources import call_feeder, error_line

OTHER = 12_345
"""A user id other than this process's."""


def make_key(name: str = "n") -> SecretKey:
    return SecretKey(name, zmq.curve_keypair()[1].decode())


def write_secret(path: Path, key: SecretKey, mode: int = 0o600) -> Path:
    path.write_text(format_secret_key(key))
    path.chmod(mode)
    return path


def complaint(parse: Callable[[bytes, str], object], data: bytes) -> str | None:
    """The parser's error message for a file called f, or None."""
    try:
        parse(data, "f")
    except ConfigError as error:
        return str(error)
    return None


@given(st.binary(min_size=32, max_size=32))
def test_z85_matches_libzmq(raw: bytes) -> None:
    assert decode_z85(z85.encode(raw).decode()) == raw


@given(st.binary(max_size=400) | st.text().map(str.encode))
def test_any_bytes_parse_or_raise_config_error(data: bytes) -> None:
    for parse in (parse_secret_key, parse_public_keys):
        message = complaint(parse, data)
        assert message is None or (message.startswith("f") and "\n" not in message)


@given(st.data())
def test_error_about_a_damaged_file_contains_no_part_of_the_key(data: st.DataObject) -> None:
    key = make_key()
    text = format_secret_key(key)
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.text("x \n#é~", max_size=3)) + text[at + 1 :]
    message = complaint(parse_secret_key, damaged.encode()) or ""
    assert not any(key.text[i : i + 6] in message for i in range(35))


def test_keys_survive_a_round_trip_through_files() -> None:
    key = make_key("trainer-7.a_b")
    assert parse_secret_key(format_secret_key(key).encode(), "f") == key
    public = key.public()
    assert parse_public_keys(format_public_key(public).encode(), "f") == (public,)
    assert len(public.raw) == 32
    several = "".join(format_public_key(make_key(f"n{i}").public()) for i in range(5))
    assert [k.name for k in parse_public_keys(several.encode(), "f")] == [f"n{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line + line, "the name n has two keys"),
        (lambda line: line + line.replace(" n ", " m "), "n and m have the same key"),
        (lambda line: line.replace("public", "secret"), "the secret key of n, where public"),
        (lambda line: line.replace(" n ", " ../n "), "f:1 is neither"),
        (lambda line: "\n# x\n" + line[:-3], "f:3 is neither"),
        (lambda line: line + "#" * KEY_FILE_BYTES_MAX, "larger than"),
        (
            lambda line: "".join(line.replace(" n ", f" n{i} ") for i in range(KEYS_MAX + 1)),
            "more than 1024 keys",
        ),
    ],
)
def test_mistakes_in_a_list_are_named(change: Callable[[str], str], message: str) -> None:
    text = change(format_public_key(make_key().public()))
    with pytest.raises(ConfigError, match=message):
        parse_public_keys(text.encode(), "f")


def test_public_key_file_is_refused_as_secret_key() -> None:
    with pytest.raises(ConfigError, match=r"holds a public key.*without \.pub"):
        parse_secret_key(format_public_key(make_key().public()).encode(), "f")


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_a_secret_key_open_to_others_is_refused_with_the_command(tmp_path: Path, mode: int) -> None:
    path = write_secret(tmp_path / "k", make_key(), mode)
    with pytest.raises(ConfigError, match=rf"open to others.*chmod 600 {path}"):
        read_secret_key(path)
    path.chmod(0o400)
    assert read_secret_key(path).name == "n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_secret_key_of_another_user_is_refused(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "k", make_key())
    os.chown(path, OTHER, -1)
    with pytest.raises(ConfigError, match=rf"belongs to another user .{OTHER}.*chown"):
        read_secret_key(path)


def give(path: Path, *entries: tuple[int, int, int]) -> None:
    """Set a file's ACL: (tag, permissions, user) of each entry."""
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")


def test_secret_key_with_the_acl_of_systemd_credentials_is_read(tmp_path: Path) -> None:
    undefined, me, key = 0xFFFF_FFFF, os.geteuid(), make_key()
    path = write_secret(tmp_path / "server", key, 0o400)
    owner, group, mask, others = ((tag, 4 * (tag in (1, 16)), undefined) for tag in (1, 4, 16, 32))
    give(path, owner, (2, 4, me), group, mask, others)
    assert path.stat().st_mode & 0o777 == 0o440
    assert read_secret_key(path) == key
    for wrong in (
        [owner, (2, 4, me), (2, 4, me + 1), group, mask, others],
        [owner, (2, 4, me), (4, 4, undefined), mask, others],
        [owner, (2, 4, me), group, (8, 4, 7), mask, others],
        [owner, (2, 4, me), group, mask, (32, 4, undefined)],
    ):
        give(path, *wrong)
        with pytest.raises(ConfigError, match="open to others"):
            read_secret_key(path)
    path.chmod(0o600)
    assert read_secret_key(path) == key


def test_pipe_or_missing_key_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, message in (
        (tmp_path / "fifo", "it is a named pipe"),
        (tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_secret_key(path)


def test_a_secret_key_is_not_shown() -> None:
    key = make_key()
    assert key.text not in f"{key} {key!r}"


def test_a_folder_is_the_list_of_its_public_keys(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.pub").write_text(format_public_key(make_key(name).public()))
    (tmp_path / "README").write_text("not a key")
    assert [key.name for key in read_public_keys(tmp_path)] == ["a", "b"]
    (tmp_path / "c.pub").write_text(format_public_key(make_key("a").public()))
    with pytest.raises(ConfigError, match="the name a has two keys"):
        read_public_keys(tmp_path)


def test_client_keys_come_from_files_or_text(tmp_path: Path) -> None:
    server, own = make_key("server").public(), make_key("me")
    secret, public = write_secret(tmp_path / "me", own), tmp_path / "server.pub"
    public.write_text(format_public_key(server))
    for given_key in (public, str(public)):
        keys = read_client_keys(given_key, secret)
        assert keys is not None
        assert (keys.server, keys.own) == (server, own)
    keys = read_client_keys(server.text, secret)
    assert keys is not None
    assert keys.server == PublicKey("feeder", server.text)
    assert read_client_keys(None, None) is None
    for one in ((public, None), (None, secret)):
        with pytest.raises(ConfigError, match="belong together"):
            read_client_keys(*one)


def test_keygen_makes_a_pair_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "server"
    done = call_feeder("keygen", path)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = read_secret_key(path)
    assert key.text not in done.stdout + done.stderr
    assert read_public_keys(tmp_path / "server.pub") == (key.public(),)
    assert key.name == "server"

    again = call_feeder("keygen", path)
    assert again.returncode == 2
    assert "exists" in error_line(again)
    assert read_secret_key(path) == key

    assert call_feeder("keygen", path, "--force", "--name", "x").returncode == 0
    assert read_secret_key(path).name == "x"
    assert read_secret_key(path).text != key.text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["server", "server.pub"]


@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        ("{folder}/k", (), "k.pub"),
        ("{folder}/a key", (), "--name"),
        (".", ("--name", "n", "--force"), ". is a folder"),
        ("/", ("--name", "n", "--force"), "/ is a folder"),
    ],
    ids=["a public key is there", "no name in the path", "here", "root"],
)
def test_keygen_replaces_nothing_else(
    tmp_path: Path, path: str, options: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "k.pub").write_text("precious")
    done = call_feeder("keygen", path.format(folder=tmp_path), *options)
    assert done.returncode == 2
    assert problem in error_line(done)
    assert [*tmp_path.iterdir()] == [tmp_path / "k.pub"]
