"""The key options of commands that connect to a daemon: --server-key and --client-key."""

import argparse


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, for ``feeder.security.keys.read_client_keys``."""
    parser.add_argument("--server-key", metavar="KEY", help="the daemon's public key, or its file")
    parser.add_argument("--client-key", metavar="FILE", help="file of your secret key")
