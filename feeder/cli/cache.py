"""``feeder cache``: remote datasets fetched to this host's disk, shown, and dropped."""

import argparse
import os
import select
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.options import option, perform
from feeder.cli.serve import find_cache_folder
from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.metrics.figures import duration, plural, size

if TYPE_CHECKING:
    from feeder.daemon.config import Config
    from feeder.disk_cache.fetcher import Fetcher
    from feeder.disk_cache.folder import DiskCache
    from feeder.pack.progress import ProgressLine

_CLIENT: Final = 0
_REDRAW_S: Final = 0.2


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    cache = subparsers.add_parser(
        "cache",
        help="fetch, show or drop datasets of object stores on this host's disk",
        description="Datasets that are served from object stores are kept in pieces in a folder of "
        "this host's disk. The folder is the one that feeder serve uses with the same options.",
    )
    commands = cache.add_subparsers(dest="action", required=True, metavar="COMMAND")
    fetch = commands.add_parser(
        "fetch",
        help="fetch all of a dataset",
        description="Fetch what is missing of the dataset at URL, or of the one that the "
        "configuration file calls NAME, so that feeder serve needs no store. After an interruption "
        "the same command resumes.",
    )
    option(fetch, "--disk-bytes auto|SIZE", "how much of that disk all datasets may take")
    show = commands.add_parser("show", help="list the datasets, and what is there of them")
    drop = commands.add_parser(
        "drop",
        help="remove a dataset from the disk",
        description="Remove what was fetched of a dataset. One that is in use stays.",
    )
    for command, run in ((fetch, run_fetch), (show, run_show), (drop, run_drop)):
        if command is not show:
            command.add_argument("dataset", metavar="URL|NAME")
        option(command, "--config FILE", "TOML file, see feeder.toml", type=Path)
        text = "folder for pieces of datasets in stores (default: as feeder serve finds it)"
        option(command, "--disk-path DIR", text)
        command.set_defaults(run=run)


def run_fetch(arguments: argparse.Namespace) -> int:
    from feeder.dataset.manifest import load_manifest
    from feeder.disk_cache.fetcher import Fetcher
    from feeder.disk_cache.folder import prepare

    config = _load(arguments)
    url, cache = _find_url(arguments.dataset, config), _open_cache(config)
    limit = config.cache.disk_bytes

    def work(progress: "ProgressLine") -> str:
        began_s = time.monotonic()
        folder = prepare(cache, url, report=lambda text: progress.note(f"feeder: warning: {text}"))
        budget_bytes = 0 if limit == "auto" else limit
        with closing(Fetcher(cache, {url: folder}, budget_bytes=budget_bytes)) as fetcher:
            fetched = _fetch_all(fetcher, load_manifest(folder).samples, url, progress)
        took_s = max(time.monotonic() - began_s, 1e-9)
        rate = f"{size(fetched)} in {duration(took_s)}, {size(fetched / took_s)}/s"
        return f"{url} is whole in {folder}: fetched {rate if fetched else 'nothing'}"

    def describe_stop(signal: str) -> str:
        return f" by {signal}: pieces are kept, the same command fetches the rest"

    print(perform(work, describe_stop))
    return 0


def _fetch_all(fetcher: "Fetcher", samples: int, url: str, progress: "ProgressLine") -> int:
    """Fetch all pieces; return the bytes that came. Raises what keeps them from being there."""
    from feeder.disk_cache.messages import Ahead

    cached, record, done_bytes = fetcher.cached(url), fetcher.record, 0
    done = cached.count_whole()
    progress.begin("fetching", "pieces", cached.pieces, done)
    fetcher.handle(_CLIENT, Ahead(url, ((0, samples),)))
    poll = select.poll()
    poll.register(fetcher.wake_fd, select.POLLIN)
    drawn_s = 0.0
    while True:
        fetcher.run()
        if fetcher.problem is not None:
            progress.clear()
            raise fetcher.problem
        now_s = time.monotonic()
        if fetcher.is_idle or now_s - drawn_s >= _REDRAW_S:
            drawn_s, whole = now_s, cached.count_whole()
            progress.add(whole - done, record.fetched_bytes - done_bytes)
            done, done_bytes = whole, record.fetched_bytes
        if fetcher.is_idle and not record.queued_pieces and done == cached.pieces:
            progress.end()
            return record.fetched_bytes
        if fetcher.is_full or (fetcher.is_idle and not record.queued_pieces):
            progress.clear()
            raise ResourceError(
                f"the disk cache is full, with {done:,} of {cached.pieces:,} pieces of {url}: "
                f"raise cache.disk_bytes (--disk-bytes) above {size(record.budget_bytes)}, or drop "
                "other datasets (feeder cache drop)"
            )
        poll.poll(max(1, int((min(fetcher.deadline_s, now_s + _REDRAW_S) - now_s) * 1000)))


def run_show(arguments: argparse.Namespace) -> int:
    from feeder.disk_cache.cached import CachedDataset

    cache = _open_cache(_load(arguments))
    rows = [("URL", "PIECES", "ON DISK", "IN USE", "FOLDER")]
    for folder in cache.folders():
        on_disk = size(cache.used_bytes(folder))
        try:
            with closing(CachedDataset.open(folder)) as cached:
                pieces = f"{cached.count_whole():,}/{cached.pieces:,}"
                in_use = "yes" if cached.is_used_by_others() else "no"
                rows.append((cached.url, pieces, on_disk, in_use, folder.name))
        except DatasetError:
            rows.append(("damaged", "", on_disk, "", folder.name))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows[len(rows) == 1 :]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    print(f"{plural(len(rows) - 1, 'dataset')}, {size(cache.used_bytes())} in {cache.root}")
    return 0


def run_drop(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    cache = _open_cache(config)
    folders = [folder for folder in cache.folders() if folder.name == arguments.dataset]
    folders = folders or cache.find(_find_url(arguments.dataset, config))
    if not folders:
        raise ConfigError(
            f"nothing of {arguments.dataset} is in {cache.root}: feeder cache show lists what is"
        )
    for folder in folders:
        freed = size(cache.used_bytes(folder))
        if not cache.drop(folder):
            raise ResourceError(
                f"{folder} is in use: end the daemon that serves {arguments.dataset}, or the "
                "command that fetches it"
            )
        print(f"dropped {folder}: {freed}")
    return 0


def _load(arguments: argparse.Namespace) -> "Config":
    from feeder.daemon.config import load_config

    overrides = {
        "cache.disk_path": arguments.disk_path,
        "cache.disk_bytes": vars(arguments).get("disk_bytes"),
    }
    return load_config(arguments.config, overrides)


def _open_cache(config: "Config") -> "DiskCache":
    from feeder.disk_cache.folder import DiskCache

    folder = find_cache_folder(config.cache.disk_path or config.cache.dir, os.environ)
    if folder is None:
        raise ConfigError("there is no folder for it (HOME is not set): give one with --disk-path")
    return DiskCache.open(folder)


def _find_url(text: str, config: "Config") -> str:
    """The canonical URL of a dataset, by what the user typed."""
    from feeder.store.address import StoreAddress, is_remote

    url = text if is_remote(text) else config.data.get(text, "")
    if not is_remote(url):
        known = "is on this host" if url else "is not in the configuration (--config)"
        raise ConfigError(f"{text} {known}: give the URL of a dataset in a store, such as s3://…")
    return StoreAddress.parse(url).url
