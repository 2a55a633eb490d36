"""``feeder keygen PATH``: makes a key pair for a feeder or a client."""

import argparse
import os
from pathlib import Path
from typing import Any

from feeder.cli.options import option
from feeder.errors import ConfigError, ResourceError


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser(
        "keygen",
        help="make a key pair for a feeder or a client",
        description="Write a secret key to PATH, readable by you only, and its public key to "
        "PATH.pub, for the other side. Each client has a pair of its own, or all ranks of a job "
        "share one; all feeders of one job share one.",
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="file for the secret key")
    option(parser, "--name NAME", "the key's name in logs (default: file name of PATH)")
    option(parser, "--force", "replace existing files")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import zmq

    from feeder.process.output_file import replace_file
    from feeder.process.stop_signals import stop_signals_blocked
    from feeder.security.keys import (
        PUBLIC_SUFFIX,
        SecretKey,
        format_public_key,
        format_secret_key,
        is_key_name,
    )

    path: Path = arguments.path
    if not path.name:
        raise ConfigError(f"{path} is a folder: give the path of a file for the secret key")
    public_path = path.with_name(path.name + PUBLIC_SUFFIX)
    name = path.name if arguments.name is None else arguments.name
    if not is_key_name(name):
        raise ConfigError(
            f"{name!r} cannot name a key: give --name NAME, 1 .. 64 letters, digits and . _ -"
        )
    secret = SecretKey(name, zmq.curve_keypair()[1].decode())
    files = {
        path: (format_secret_key(secret), 0o600),
        public_path: (format_public_key(secret.public()), 0o644),
    }
    for key_path in files:
        if not arguments.force and os.path.lexists(key_path):
            raise ConfigError(f"{key_path} exists: choose another path, or --force to replace it")
    with stop_signals_blocked():  # both files of the pair, or neither
        for key_path, (text, mode) in files.items():
            try:
                with replace_file(key_path, mode=mode) as file:
                    file.write(text.encode("ascii"))
            except OSError as error:
                raise ResourceError(f"{key_path} cannot be written: {error.strerror}") from None
    print(f"secret key of {name}: {path} (keep it here)")
    print(f"public key of {name}: {public_path} (give it to the other side)")
    return 0
