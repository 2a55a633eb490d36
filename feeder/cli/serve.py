"""``feeder serve``: runs the daemon until SIGTERM."""

import argparse
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.pack_cache.shared_progress import SharedProgress


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="serve batches of datasets until SIGTERM",
        description="Serve batches of datasets. What is not packed yet is packed into the cache "
        "folder first. Options override the configuration file, which overrides the defaults; "
        "--show prints the result.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file, see feeder.toml")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=DST|SRC",
        help="serve under NAME the dataset in DST, or what feeder pack would make of SRC; may be "
        "repeated",
    )
    parser.add_argument(
        "--bind",
        action="append",
        metavar="ENDPOINT",
        help="tcp://127.0.0.1:PORT or ipc:///PATH; may be repeated (default: port 5555)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="keep this feeder's lanes when its host or address changes; unique among the feeders "
        "of a job",
    )
    parser.add_argument(
        "--secret-key", metavar="FILE", help="this feeder's secret key; see feeder keygen"
    )
    parser.add_argument(
        "--client-keys", metavar="PATH", help="public keys of the clients allowed over tcp"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow every client that can reach a tcp address, unencrypted",
    )
    parser.add_argument("--socket-mode", metavar="MODE", help="of ipc sockets: 0600, 0660, 0666")
    parser.add_argument("--workers", metavar="auto|N", help="total number of decoding processes")
    parser.add_argument("--pin", metavar="auto|off|LIST", help="CPUs to run on, e.g. 0-3,8")
    parser.add_argument("--window-max", metavar="N", help="maximum window of a client, in batches")
    parser.add_argument("--chunk-images", metavar="N", help="images per message")
    parser.add_argument(
        "--slots-bytes",
        metavar="auto|SIZE",
        help="memory for batches per node process, such as 4GiB or 1.5GB",
    )
    parser.add_argument(
        "--decoded-bytes", metavar="auto|SIZE", help="decoded cache per node process; 0 for none"
    )
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="folder for packed sources (default: $CACHE_DIRECTORY, else $XDG_CACHE_HOME/feeder or "
        "~/.cache/feeder)",
    )
    parser.add_argument(
        "--repack", action="store_true", help="pack every source again, also unchanged ones"
    )
    parser.add_argument("--clients-max", metavar="N", help="maximum sessions per node process")
    parser.add_argument("--client-sessions-max", metavar="N", help="of these, per client")
    parser.add_argument(
        "--client-slots-bytes", metavar="auto|SIZE", help="memory for batches per client"
    )
    parser.add_argument("--recipes-max", metavar="N", help="maximum recipes per node process")
    parser.add_argument("--client-recipes-max", metavar="N", help="of these, per client")
    parser.add_argument("--lease-s", metavar="S", help="silence after which a session ends")
    parser.add_argument("--drain-s", metavar="S", help="time to finish requests after SIGTERM")
    parser.add_argument("--decoder", metavar="own|turbojpeg", help="what decodes the samples")
    parser.add_argument("--open-shards", metavar="N", help="open shard files per process")
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="serve /metrics, /healthz and /readyz over HTTP, e.g. at 127.0.0.1:9464",
    )
    parser.add_argument(
        "--metrics-token", metavar="FILE", help="token that /metrics requires; see feeder.toml"
    )
    parser.add_argument(
        "--topology-root", metavar="DIR", help="where /sys and /proc are, for tests"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", choices=("text", "json"), help="json: an object a line")
    parser.add_argument("--show", action="store_true", help="print the configuration and exit")
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
    from feeder.cli.packed_sources import replace_sources
    from feeder.daemon.notify import Notifier
    from feeder.daemon.supervisor import Supervisor, open_metrics

    notifier = Notifier(os.environ)

    def answer(progress: "SharedProgress") -> contextlib.AbstractContextManager[None]:
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
        packed = replace_sources(
            config,
            os.environ,
            answer,
            repack=arguments.repack,
            is_terminal=is_terminal,
        )
        if isinstance(packed, int):
            return packed
        # From now on only what is wrong is written past logging, by C libraries and in crashes.
        relay.level = logging.WARNING
        log = start_logging(config.log_level, form=config.log_format)
        stack.callback(logging.shutdown)  # the numbers of lines that were limited
        Supervisor(packed, notifier, log, metrics).run()
    return 0


def _overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the options by configuration key; None where one was not given."""
    overrides: dict[str, object] = {
        f"serve.{name}": getattr(arguments, name)
        for name in (
            "name",
            "secret_key",
            "client_keys",
            "socket_mode",
            "workers",
            "pin",
            "window_max",
            "chunk_images",
            "slots_bytes",
            "clients_max",
            "client_sessions_max",
            "client_slots_bytes",
            "recipes_max",
            "client_recipes_max",
            "lease_s",
            "drain_s",
            "decoder",
            "open_shards",
            "metrics",
            "metrics_token",
            "topology_root",
        )
    }
    overrides["cache.decoded_bytes"] = arguments.decoded_bytes
    overrides["cache.dir"] = arguments.cache_dir
    overrides["serve.bind"] = tuple(arguments.bind) if arguments.bind else None
    overrides["log_level"] = arguments.log_level
    overrides["log_format"] = arguments.log_format
    overrides["data"] = _parse_data(arguments.data)
    return overrides


def _parse_data(texts: list[str]) -> dict[str, str]:
    locations: dict[str, str] = {}
    for text in texts:
        name, equals, location = text.partition("=")
        if not (name and equals and location):
            raise ConfigError(f"--data {text}: write NAME=FOLDER, such as imagenet=/data/imagenet")
        if name in locations:
            raise ConfigError(f"--data {text}: the name {name} is given twice: choose another")
        locations[name] = location
    return locations
