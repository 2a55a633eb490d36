"""``feeder serve``: packs the sources among what it serves, then runs the daemon until SIGTERM."""

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.options import option
from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.daemon.config import Config
    from feeder.disk_cache.folder import DiskCache
    from feeder.pack.run import PackSummary
    from feeder.pack_cache.shared_progress import SharedProgress


_OPTIONS: Final = (
    (
        "name",
        "NAME",
        "keep this feeder's lanes when its host or address changes; unique among the feeders of a "
        "job",
    ),
    ("secret-key", "FILE", "this feeder's secret key; see feeder keygen"),
    ("client-keys", "PATH", "public keys of the clients allowed over tcp"),
    ("insecure", "", "allow every client that can reach a tcp address, unencrypted"),
    ("socket-mode", "MODE", "of ipc sockets: 0600, 0660, 0666"),
    ("peer-key", "FILE", "this feeder's secret key as a client of its peers"),
    ("workers", "auto|N", "total number of decoding processes"),
    ("pin", "auto|off|LIST", "CPUs to run on, e.g. 0-3,8"),
    ("window-max", "N", "maximum window of a client, in batches"),
    ("chunk-images", "N", "images per message"),
    (
        "slots-bytes",
        "auto|SIZE",
        "memory for batches per node process, such as 4GiB or 1.5GB",
    ),
    ("decoded-bytes", "auto|SIZE", "decoded cache per node process; 0 for none"),
    (
        "cache-dir",
        "DIR",
        "folder for packed sources (default: $CACHE_DIRECTORY, else $XDG_CACHE_HOME/feeder or "
        "~/.cache/feeder)",
    ),
    ("disk-path", "DIR", "folder for pieces of datasets in stores (default: as --cache-dir)"),
    ("disk-bytes", "auto|SIZE", "how much of that disk these may take"),
    ("repack", "", "pack every source again, also unchanged ones"),
    ("clients-max", "N", "maximum sessions per node process"),
    ("client-sessions-max", "N", "of these, per client"),
    ("client-slots-bytes", "auto|SIZE", "memory for batches per client"),
    ("recipes-max", "N", "maximum recipes per node process"),
    ("client-recipes-max", "N", "of these, per client"),
    ("lease-s", "S", "silence after which a session ends"),
    ("drain-s", "S", "time to finish requests after SIGTERM"),
    ("decoder", "own|turbojpeg", "what decodes the samples"),
    ("open-shards", "N", "open shard files per process"),
    (
        "metrics",
        "ADDRESS",
        "serve /metrics, /healthz and /readyz over HTTP, e.g. at 127.0.0.1:9464",
    ),
    ("metrics-token", "FILE", "token that /metrics requires; see feeder.toml"),
    ("topology-root", "DIR", "where /sys and /proc are, for tests"),
)
"""Options with their metavar and help; those without a metavar are switches, the others set the
configuration key of their name."""

_CACHE_KEYS: Final = {
    "decoded-bytes": "cache.decoded_bytes",
    "cache-dir": "cache.dir",
    "disk-path": "cache.disk_path",
    "disk-bytes": "cache.disk_bytes",
}


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve batches of datasets until SIGTERM",
        description="Serve batches of datasets. What is not packed yet is packed into the cache "
        "folder first. Options override the configuration file, which overrides the defaults; "
        "--show prints the result.",
    )
    option(parser, "--config FILE", "TOML file, see feeder.toml", type=Path)
    option(
        parser,
        "--data NAME=DST|SRC|FILE",
        "serve under NAME the dataset in DST, what feeder pack would make of SRC, or the selection "
        "in FILE; may be repeated",
        action="append",
        default=[],
    )
    bind = "tcp://127.0.0.1:PORT or ipc:///PATH; may be repeated (default: port 5555)"
    option(parser, "--bind ENDPOINT", bind, action="append")
    peers = "other feeders that may have what is in a store: a list as for clients; may be repeated"
    option(parser, "--peers LIST", peers, action="append")
    for name, metavar, text in _OPTIONS:
        option(parser, f"--{name} {metavar}".rstrip(), text)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    option(parser, "--log-format", "json: an object a line", choices=("text", "json"))
    option(parser, "--show", "print the configuration and exit")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a stop signal, then return 0."""
    from feeder.daemon.config import format_effective, load_config
    from feeder.process.log_lines import start_logging
    from feeder.process.program import before_exit
    from feeder.process.stderr_relay import StderrRelay, is_journal

    is_terminal = sys.stderr.isatty()
    relay = StderrRelay(is_journal=is_journal(os.environ, 2))
    before_exit.append(relay.close)
    config = load_config(arguments.config, _overrides(arguments), is_insecure=arguments.insecure)
    if arguments.show:
        print(format_effective(config))
        return 0
    relay.format = config.log_format
    from feeder.daemon.notify import Notifier
    from feeder.daemon.supervisor import Supervisor, open_metrics

    notifier = Notifier(os.environ)

    def answer(progress: "SharedProgress") -> AbstractContextManager[None]:
        from feeder.daemon.early_answers import answer_early
        from feeder.wire.messages import NotReady

        def state() -> NotReady:
            return NotReady(text=progress.text, advances=progress.advances)

        return answer_early(config, state, notifier, metrics)

    with contextlib.ExitStack() as stack:
        # Before packing, which may take hours: a port in use is found now, and probes are answered.
        metrics = open_metrics(config)
        if metrics is not None:
            stack.callback(metrics.close)
            metrics.start()
        packed = _replace_sources(config, answer, arguments.repack, is_terminal, stack)
        # From now on only what is wrong is written past logging, by C libraries and in crashes.
        relay.level = logging.WARNING
        log = start_logging(config.log_level, form=config.log_format)
        stack.callback(logging.shutdown)  # the numbers of lines that were limited
        Supervisor(packed, notifier, log, metrics).run()
    return 0


def _overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """The options by configuration key; None where one was not given."""
    overrides: dict[str, object] = {}
    for name, metavar, _ in _OPTIONS:
        field = name.replace("-", "_")
        if metavar:
            overrides[_CACHE_KEYS.get(name, f"serve.{field}")] = getattr(arguments, field)
    for name in ("bind", "peers"):
        texts = getattr(arguments, name)
        overrides[f"serve.{name}"] = tuple(texts) if texts else None
    locations: dict[str, str] = {}
    for text in arguments.data:
        name, equals, location = text.partition("=")
        if not (name and equals and location):
            raise ConfigError(f"--data {text}: write NAME=FOLDER, such as imagenet=/data/imagenet")
        if name in locations:
            raise ConfigError(f"--data {text}: the name {name} is given twice: choose another")
        locations[name] = location
    levels = {"log_level": arguments.log_level, "log_format": arguments.log_format}
    return overrides | levels | {"data": locations}


def _prepare_remote(
    config: "Config", names: list[str], disk: "DiskCache", stack: contextlib.ExitStack
) -> "Config":
    """``config`` with the folder of the cached dataset in place of each of these remote ones.

    They stay open until ``stack`` ends: until the fetcher has them open, other daemons would remove
    them to make room.
    """
    from feeder.disk_cache.cached import CachedDataset
    from feeder.disk_cache.folder import prepare

    def report(text: str) -> None:
        sys.stderr.write(f"feeder: warning: {text}\n")

    found = {name: prepare(disk, config.data[name], report=report) for name in names}
    for folder in found.values():
        stack.enter_context(contextlib.closing(CachedDataset.open(folder)))
    texts = {name: str(folder) for name, folder in found.items()}
    return dataclasses.replace(config, data={**config.data, **texts})


def _open_disk_cache(config: "Config", name: str) -> "DiskCache":
    """The disk cache, which dataset ``name`` needs; ConfigError if there is no folder for it."""
    from feeder.disk_cache.folder import DiskCache

    folder = find_cache_folder(config.cache.disk_path or config.cache.dir, os.environ)
    if folder is None:
        raise ConfigError(
            f"data.{name} is in a store, and there is no folder to keep its pieces in (HOME is not "
            "set): give one with --disk-path"
        )
    return DiskCache.open(folder)


def _replace_sources(
    config: "Config",
    answer: "Callable[[SharedProgress], AbstractContextManager[None]]",
    repack: bool,
    is_terminal: bool,
    stack: contextlib.ExitStack,
) -> "Config":
    """``config`` with a folder in place of each source, which is packed, and each remote dataset,
    which ``stack`` keeps open; its selections apart, with the folders of their datasets.

    While there are sources to look at, ``answer`` answers clients, probes and systemd.

    Raises FeederError if a source cannot be packed, or has changed since it was and ``repack`` is
    false, and SystemExit if a signal stops the packing.
    """
    from feeder.daemon.selections import add_selections, take_selections
    from feeder.dataset.first_read import check_readable
    from feeder.pack_cache.entry import class_warnings, is_source
    from feeder.store.address import StoreAddress, is_remote

    local = {name: Path(text) for name, text in config.data.items() if "://" not in text}
    check_readable({f"dataset {name} at {path}": path for name, path in local.items()})
    config, selections = take_selections(config)
    cache = find_cache_folder(config.cache.dir, os.environ)
    remote = [name for name, text in sorted(config.data.items()) if is_remote(text)]
    disk = _open_disk_cache(config, remote[0]) if remote else None
    # What the disk cache has is a dataset, without a look at the store, which may be away.
    known = [n for n in remote if disk and disk.find(StoreAddress.parse(config.data[n]).url)]
    unknown = sorted(config.data.keys() - known)
    sources = [name for name in unknown if is_source(config.data[name], cache)]
    if disk is not None:
        prepared = [name for name in remote if name not in sources]
        config = _prepare_remote(config, prepared, disk, stack)
    if sources:
        if cache is None:
            raise ConfigError(
                f"data.{sources[0]} is a source, and there is no folder to keep its packed copy in "
                "(HOME is not set): give one with --cache-dir"
            )
        config = _pack_sources(config, sources, cache, answer, repack, is_terminal)
    elif repack:
        raise ConfigError(
            "--repack packs sources again, and only packed datasets are served: leave it out"
        )
    for line in class_warnings(config.data):
        sys.stderr.write(f"feeder: {line}\n")

    def prepare(config: "Config", name: str) -> "Config":
        return _prepare_remote(config, [name], disk or _open_disk_cache(config, name), stack)

    return add_selections(config, selections, prepare)


def find_cache_folder(given: str, environ: Mapping[str, str]) -> Path | None:
    """The folder for packed sources: as given, systemd's, or the user's; None without any.

    A path in the environment that is not absolute is invalid, and left out.
    Source: systemd.exec(5), the XDG Base Directory Specification.
    """
    if given:
        return Path(given)
    candidates = (
        (environ.get("CACHE_DIRECTORY", "").partition(":")[0], ""),  # systemd has put "feeder" in
        (environ.get("XDG_CACHE_HOME", ""), "feeder"),
        (environ.get("HOME", ""), ".cache/feeder"),
    )
    return next((Path(top, below) for top, below in candidates if top.startswith("/")), None)


def _pack_sources(
    config: "Config",
    sources: list[str],
    cache: Path,
    answer: "Callable[[SharedProgress], AbstractContextManager[None]]",
    repack: bool,
    is_terminal: bool,
) -> "Config":
    from feeder.cli.pack import format_summary
    from feeder.pack.task_pool import choose_jobs
    from feeder.pack_cache.resolve import SourceCache
    from feeder.pack_cache.shared_progress import SharedProgress
    from feeder.process.stop_signals import StopSignals

    workers = config.serve.workers
    progress = SharedProgress(sys.stderr, is_terminal=is_terminal)

    def report(dataset: Path, summary: "PackSummary") -> None:
        for line in format_summary(dataset, summary):
            progress.note(f"feeder: {line}")

    with StopSignals() as signals, answer(progress):
        packed = SourceCache(
            cache,
            jobs=choose_jobs(None) if workers == "auto" else workers,
            repack=repack,
            progress=progress,
            report=report,
        )
        try:
            data = packed.find_datasets(config.data, sources)
        except KeyboardInterrupt:
            progress.note(
                f"feeder: stopped by {signals.name} while packing: finished shards are kept, the "
                "next start resumes"
            )
            raise SystemExit(signals.exit_status) from None
    return dataclasses.replace(config, data=data)
