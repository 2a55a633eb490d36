"""The options of commands that ask a daemon over tcp: --server-key and --client-key."""

import argparse


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Add them; ``feeder.security.keys.read_client_keys`` takes what is given."""
    parser.add_argument(
        "--server-key", metavar="KEY", help="the daemon's public key: its file, or the key itself"
    )
    parser.add_argument("--client-key", metavar="FILE", help="the file of your secret key")
