"""The daemon's configuration: a TOML file and the command line, into frozen dataclasses.

    log_level = "info"      and log_format
    [serve]                 the keys of ServeConfig
    [cache]                 the keys of CacheConfig
    [data]                  NAME = "folder of a packed dataset, or a source to pack"
    [weights.CLIENT]        JOB = a job's share of the workers' time, relative to others

The command line overrides the file, and the file the default. An unknown key is an error that names
the nearest known one. Invariant: a Config is valid as a whole, so its users check nothing again.
"""

import dataclasses
import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec

from feeder.daemon.config_keys import (
    ABSOLUTE_FOLDER,
    DATASET,
    ENDPOINTS,
    FEEDER_NAME,
    FILE_PATH,
    METRICS_ADDRESS,
    PEERS,
    PIN,
    WEIGHTS,
    Kind,
    choice,
    format_size,
    number,
    parse_metrics_address,
    parse_weights,
    size,
    whole_number,
)
from feeder.errors import ConfigError
from feeder.jpeg.decoders import DECODERS, Decoder
from feeder.node.endpoint import parse_endpoint
from feeder.process.log_lines import LOG_FORMATS, LogFormat
from feeder.process.path_text import encode_name, path_to_text, printable
from feeder.process.regular_file import open_regular_file
from feeder.worker.messages import SelectionSource

DEFAULT: Final = "default"
COMMAND_LINE: Final = "command line"

_DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_CHARACTERS_MAX: Final = 80
_TOML_LINE = re.compile(r"(: not valid TOML: .*) \(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The keys of [serve]. The comment on each key is the reason for its default."""

    # Loopback: without keys only this machine may connect.
    bind: Annotated[tuple[str, ...], ENDPOINTS] = ("tcp://127.0.0.1:5555",)
    # Host name and first endpoint identify most feeders. Where these change (a pod that is placed
    # again), a name of its own lets a feeder keep its lanes.
    name: Annotated[str, FEEDER_NAME] = ""
    # None: people decide which clients may connect. With keys, all tcp is encrypted.
    secret_key: Annotated[str, FILE_PATH] = ""
    # The public keys of the clients that may connect over tcp; goes with secret_key.
    client_keys: Annotated[str, FILE_PATH] = ""
    # The daemon's group, whose members train here; other users of the host may not connect.
    socket_mode: Annotated[str, choice(("0600", "0660", "0666"))] = "0660"
    # None: what other feeders hold is known from the list that clients have, which only operators
    # know. For datasets in stores: a batch that another feeder owns is then copied from there.
    peers: Annotated[tuple[str, ...], PEERS] = ()
    # This feeder's secret key as a client of its peers, where secret_key is set.
    peer_key: Annotated[str, FILE_PATH] = ""
    # One worker for each CPU within affinity and cgroup quota: decoding is pure CPU work.
    workers: Annotated[int | Literal["auto"], whole_number(1, 1024, auto=True)] = "auto"
    # Each node process on its own cores and memory; no effect on machines with one NUMA node.
    pin: Annotated[str, PIN] = "auto"
    # Prefetch depth is the client's choice; 16 batches of 256 are 0.6 GB, more hides a problem.
    window_max: Annotated[int, whole_number(1, 64)] = 16
    # 64 images of 224 px are 9.6 MB and some 15 ms of a core: sockets are fastest at 2 to 10 MB, a
    # chunk costs 0.3 ms besides its images, and the first batch comes early if workers share it.
    chunk_images: Annotated[int, whole_number(1, 1024)] = 64
    # A share of the memory that cgroup and machine have left, so that one file fits any host.
    slots_bytes: Annotated[int | Literal["auto"], size(1 << 20, 1 << 44)] = "auto"
    # Each rank has a session at every feeder of its list, and another one for validation: room for
    # 16 hosts of 8 accelerators, twice. Windows shrink if these do not fit into slots_bytes.
    clients_max: Annotated[int, whole_number(1, 4096)] = 512
    # All ranks of a job, and perhaps all jobs, are one client; the rest is for other clients.
    client_sessions_max: Annotated[int, whole_number(1, 4096)] = 384
    # "auto" is CLIENT_SHARE of slots_bytes, for the same reason.
    client_slots_bytes: Annotated[int | Literal["auto"], size(1 << 20, 1 << 44)] = "auto"
    # Training and validation of some jobs. The cache keeps finished rows of each recipe, and never
    # evicts them.
    recipes_max: Annotated[int, whole_number(1, 4096)] = 32
    client_recipes_max: Annotated[int, whole_number(1, 4096)] = 16
    # Clients ping every second: 15 missing pings mean a dead client, not a slow one.
    lease_s: Annotated[float, number(2, 3600)] = 15.0
    # SIGTERM must be over in 5 s: 4 to finish requested batches, 1 to end the processes.
    drain_s: Annotated[float, number(0, 4.5)] = 4.0
    # Feeder's own decoder is nine times as fast, with the same bytes; "turbojpeg" is for a CPU on
    # which the self-test finds otherwise.
    decoder: Annotated[Decoder, choice(DECODERS)] = "own"
    # Of each dataset, in each worker. The soft limit of open files is raised to the hard one; if
    # that is too low, workers keep fewer open (daemon/node_plan.py).
    open_shards: Annotated[int, whole_number(8, 65536)] = 512
    # Off by default. The usual port for a Prometheus exporter is 9464.
    metrics: Annotated[str, METRICS_ADDRESS] = ""
    # The file of the token that scrapers must send; needed beyond loopback.
    metrics_token: Annotated[str, FILE_PATH] = ""
    # The folder of /sys and /proc. In tests another folder simulates a machine.
    topology_root: Annotated[str, ABSOLUTE_FOLDER] = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The keys of [cache]. The comment on each key is the reason for its default."""

    # Off: decoded images take seven times the bytes of packed ones, so unless most of a dataset
    # fits, the page cache uses the memory better. "auto" is CACHE_SHARE of the memory that cgroup
    # and machine have left (host/memory_budget.py), so that one file fits any host.
    decoded_bytes: Annotated[int | Literal["auto"], size(1 << 20, 1 << 46, zero=True)] = 0
    # The folder for caches that systemd gives the service, or the one of the user's session.
    dir: Annotated[str, FILE_PATH] = ""
    # The same folder: pieces of datasets in stores are a cache, too.
    disk_path: Annotated[str, FILE_PATH] = ""
    # "auto" leaves a share of the file system free (disk_cache/fetcher.py).
    disk_bytes: Annotated[int | Literal["auto"], size(1 << 20, 1 << 50)] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration."""

    serve: ServeConfig
    cache: CacheConfig
    data: Mapping[str, str]
    """By name, a dataset's folder, a selection's file or a source to pack: an absolute path, a
    pattern, or a URL. Once sources are packed, folders only, with those of selections."""
    selections: Mapping[str, SelectionSource] = dataclasses.field(default_factory=dict)
    """By name, those of ``data``, once they were found there."""
    weights: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """By client and job, those that are not 1."""
    # Enough for an operator; "debug" adds a line for each event of a session.
    log_level: Annotated[str, choice(("debug", "info", "warning", "error"))] = "info"
    # For people; "json" is for log collectors.
    log_format: Annotated[LogFormat, choice(LOG_FORMATS)] = "text"
    provenance: Mapping[str, str]
    """By key ("serve.workers", "data.NAME"), DEFAULT, COMMAND_LINE or the file's path."""
    is_insecure: bool = False
    """Allow plain tcp beyond this machine: only the command line sets it, never a file."""


def load_config(
    path: Path | None, overrides: Mapping[str, object], *, is_insecure: bool = False
) -> Config:
    """Load the configuration of a file (None: defaults only) under the command line's overrides.

    `overrides` maps keys as in `provenance` to values, None for an option that was not given; text
    is read as the key's kind; "data" maps names to folders and adds to those of the file. Raises
    ConfigError with one line that names the origin, the key, the value and the allowed values.
    """
    # Every value is parsed by its own key's kind, which the type checker cannot see.
    tables: dict[str, Any] = {table: {} for table in ("", *_TABLES)}
    provenance = dict.fromkeys(_KINDS, DEFAULT)
    options = {key: value for key, value in overrides.items() if value is not None}
    layers = [] if path is None else [(str(path), path.resolve().parent, _read_toml(path))]
    for origin, folder, document in [*layers, (COMMAND_LINE, None, options)]:
        try:
            for key, value in _flatten(document):
                table, _, name = key.partition(".") if "." in key else ("", "", key)
                tables[table][name] = _parse(key, value, folder)
                provenance[key] = origin
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None
    config = Config(
        serve=ServeConfig(**tables["serve"]),
        cache=CacheConfig(**tables["cache"]),
        data=tables["data"],
        weights=tables[WEIGHTS],
        provenance=provenance,
        is_insecure=is_insecure,
        **tables[""],
    )
    _check_security(config)
    return config


def format_effective(config: Config) -> str:
    """Format the configuration as TOML that loads again, each key with its origin."""
    tables: tuple[tuple[str, Mapping[str, object]], ...] = (
        ("", {name: getattr(config, name) for name in _TOP_LEVEL}),
        ("serve", dataclasses.asdict(config.serve)),
        ("cache", dataclasses.asdict(config.cache)),
        ("data", {name: path_to_text(text) for name, text in config.data.items()}),
    )
    lines: list[tuple[str, str]] = []
    for table, values in tables:
        lines += [("", ""), (f"[{table}]", "")] if table else []
        for name, value in values.items():
            key = f"{table}.{name}" if table else name
            if isinstance(value, int) and name.endswith("_bytes"):
                value = format_size(value)
            lines.append((f"{_quote_key(name)} = {_toml_value(value)}", config.provenance[key]))
    for client, weights in config.weights.items():
        origin = config.provenance[f"{WEIGHTS}.{client}"]
        lines += [("", ""), (f"[{WEIGHTS}.{_quote_key(client)}]", "")]
        lines += [(f"{_quote_key(job)} = {weight:g}", origin) for job, weight in weights.items()]
    width = max(len(text) for text, _ in lines)
    return "\n".join(
        f"{text.ljust(width)}  # {origin}" if origin else text for text, origin in lines
    )


def _check_security(config: Config) -> None:
    serve = config.serve
    if bool(serve.secret_key) != bool(serve.client_keys):
        present, missing = ("secret_key", "client_keys")[:: 1 if serve.secret_key else -1]
        origin = config.provenance[f"serve.{present}"]
        raise ConfigError(
            f"{origin}: serve.{present} is set and serve.{missing} is not: set both (this feeder's "
            "own key, and the keys of the clients that may connect)"
        )
    if serve.peers and bool(serve.secret_key) != bool(serve.peer_key):
        present, missing = ("secret_key", "peer_key")[:: 1 if serve.secret_key else -1]
        raise ConfigError(
            f"{config.provenance['serve.peers']}: serve.peers and serve.{present} are set and "
            f"serve.{missing} is not: peers have this feeder's own key, and know it as a client by "
            "another one, whose public key is in their client_keys"
        )
    if serve.secret_key and config.is_insecure:
        raise ConfigError("--insecure and secret_key exclude each other: leave one of them out")
    for endpoint in map(parse_endpoint, serve.bind):
        if not (endpoint.is_local or serve.secret_key or config.is_insecure):
            raise ConfigError(
                f"{config.provenance['serve.bind']}: bind: {endpoint} would be open to the "
                "network: make CURVE keys with `feeder keygen` and set secret_key and client_keys "
                "(see systemd/feeder.toml), bind tcp://127.0.0.1:PORT or ipc:///PATH, or type "
                "--insecure to let anyone connect"
            )
    is_private = not serve.metrics or parse_metrics_address(serve.metrics).is_local
    if not (is_private or serve.metrics_token):
        raise ConfigError(
            f"{config.provenance['serve.metrics']}: metrics: {serve.metrics} would be open to the "
            "network: set metrics_token (the file of a token that scrapers send), or use 127.0.0.1"
        )


def _read_toml(path: Path) -> dict[str, object]:
    try:
        with open_regular_file(path) as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {error.strerror}; name another one with "
            "--config"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        text = _TOML_LINE.sub(r":\2\1", f"{path}: not valid TOML: {error}")
        at_end = "(at end of document)", "at the end of the file"
        raise ConfigError(text.replace(*at_end)) from None
    except (RecursionError, ValueError):  # the latter from int(), which takes 4300 digits
        raise ConfigError(
            f"{path}: not valid TOML: values are nested too deeply, or a number has too many digits"
        ) from None


def _flatten(document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield keys such as "serve.workers", and their values."""
    for name, value in document.items():
        if name not in _TABLES:
            yield name, value
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{key}", item) for key, item in value.items())
        else:
            raise ConfigError(f"{name} is {_show(value)}: it must be a table, [{name}]")


def _parse(key: str, value: object, folder: Path | None) -> object:
    """Parse the value of a key, in the file of ``folder`` or, without one, on the command line."""
    table, _, name = key.partition(".")
    if table == WEIGHTS:
        return parse_weights(name, value)
    kind = DATASET if table == "data" else _KINDS.get(key)
    if kind is None:
        raise ConfigError(f"there is no key {_show_key(key)}: {_nearest(key)}")
    if kind is DATASET and not _DATASET_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a dataset name: use letters, digits, and after the first of these "
            "also . _ -, 128 at most"
        )
    if kind.is_path and isinstance(value, str) and folder is not None:
        value = os.fsdecode(encode_name(value))  # the file is UTF-8, Python decodes by the locale
    try:
        parsed = kind.check(msgspec.convert(value, kind.type, strict=folder is not None))
    except (ValueError, msgspec.ValidationError):
        raise ConfigError(f"{key} is {_show(value)}: allowed is {kind.allowed}") from None
    if not kind.is_path or not parsed or "://" in parsed:  # a path would lose a slash of a URL
        return parsed
    return str(Path(folder or "", parsed).absolute())


def _nearest(key: str) -> str:
    """Hint at the known key, first of its own table, with the most similar last word."""
    known = {name.rpartition(".")[2]: name for name in _KINDS} | _TABLES
    table, _, word = key.rpartition(".")
    beside = [name for name, full in known.items() if full.startswith(f"{table}.")]
    for names in (beside, known):
        for name in difflib.get_close_matches(word, names, n=1):
            return f"did you mean {known[name]}?"
    return f"known are {', '.join(_KINDS)}, data.NAME and {WEIGHTS}.CLIENT"


def _kinds(cls: type, prefix: str) -> dict[str, Kind]:
    """The kind of every annotated key of a dataclass."""
    hints = get_type_hints(cls, include_extras=True).items()
    return {prefix + key: h.__metadata__[0] for key, h in hints if hasattr(h, "__metadata__")}


_TABLES: Final = {
    "serve": "[serve]",
    "cache": "[cache]",
    "data": "[data]",
    WEIGHTS: "[weights.CLIENT]",
}
_TOP_LEVEL = _kinds(Config, "")
_KINDS = _TOP_LEVEL | _kinds(ServeConfig, "serve.") | _kinds(CacheConfig, "cache.")


def _toml_value(value: object) -> str:
    """Write text, a number or a list as TOML, which has these as JSON has."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # the one control that TOML forbids and JSON allows


def _quote_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml_value(name)


def _show_key(key: str) -> str:
    return key if key.isprintable() and len(key) <= _SHOWN_CHARACTERS_MAX else _show(key)


def _show(value: object) -> str:
    """Show a value as JSON, in one short line without control characters."""
    try:
        text = printable(json.dumps(value, default=str, ensure_ascii=False))
    except (RecursionError, ValueError):
        return "a value that is nested too deeply, or a number of too many digits"
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[: _SHOWN_CHARACTERS_MAX - 3]}…"
