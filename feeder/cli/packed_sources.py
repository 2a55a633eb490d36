"""For ``feeder serve``: packs the sources among what it serves, before the daemon starts."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.daemon.config import Config
    from feeder.pack.progress import ProgressLine
    from feeder.pack.run import PackSummary
    from feeder.pack_cache.shared_progress import SharedProgress


def replace_sources(
    config: "Config",
    environ: Mapping[str, str],
    answer: "Callable[[SharedProgress], AbstractContextManager[None]]",
    *,
    repack: bool,
    is_terminal: bool,
) -> "Config | int":
    """Return ``config`` with the dataset packed from each source in place of the source.

    While there are sources to look at, ``answer`` answers clients, probes and systemd.

    An exit status instead if a signal has stopped the packing. Raises FeederError if a source
    cannot be packed, or has changed since it was and ``repack`` is false.
    """
    from feeder.dataset.first_read import check_readable
    from feeder.pack_cache.entry import is_source
    from feeder.pack_cache.validation import class_warnings

    local = {name: Path(text) for name, text in config.data.items() if "://" not in text}
    check_readable({f"dataset {name} at {path}": path for name, path in local.items()})
    cache = find_cache_folder(config.cache.dir, environ)
    sources = [name for name, text in sorted(config.data.items()) if is_source(text, cache)]
    packed: Config | int = config
    if not sources:
        if repack:
            raise ConfigError(
                "--repack packs sources again, and only packed datasets are served: leave it out"
            )
    elif cache is None:
        raise ConfigError(
            f"data.{sources[0]} is a source, and there is no folder to keep its packed copy in "
            "(HOME is not set): give one with --cache-dir"
        )
    else:
        packed = _pack_sources(config, sources, cache, answer, repack, is_terminal)
    for line in class_warnings(packed.data) if not isinstance(packed, int) else ():
        sys.stderr.write(f"feeder: {line}\n")
    return packed


def find_cache_folder(given: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder for packed sources: as given, systemd's, or the user's; None without any.

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
) -> "Config | int":
    from feeder.pack.task_pool import choose_jobs
    from feeder.pack_cache.resolve import SourceCache
    from feeder.pack_cache.shared_progress import SharedProgress
    from feeder.process.stop_signals import StopSignals

    workers = config.serve.workers
    progress = SharedProgress(sys.stderr, is_terminal=is_terminal)
    with StopSignals() as signals, answer(progress):
        packed = SourceCache(
            cache,
            jobs=choose_jobs(None) if workers == "auto" else workers,
            repack=repack,
            progress=progress,
            report=lambda dataset, summary: _report(progress, dataset, summary),
        )
        try:
            data = packed.find_datasets(config.data, sources)
        except KeyboardInterrupt:
            progress.note(
                f"feeder: stopped by {signals.name} while packing: finished shards are kept, the "
                "next start resumes"
            )
            return signals.exit_status
    return dataclasses.replace(config, data=data)


def _report(progress: "ProgressLine", dataset: Path, summary: "PackSummary") -> None:
    from feeder.cli.pack import format_summary

    for line in format_summary(dataset, summary):
        progress.note(f"feeder: {line}")
