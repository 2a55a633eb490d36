"""Key pairs in files, for tests."""

from dataclasses import dataclass
from pathlib import Path

import zmq

from feeder.security.keys import (
    ClientKeys,
    SecretKey,
    format_public_key,
    format_secret_key,
    read_client_keys,
)


@dataclass(frozen=True)
class KeyPair:
    """The files of a secret key and of its public key."""

    secret: Path
    public: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> "KeyPair":
        """Generate a pair and write it to the folder."""
        key = SecretKey(name, zmq.curve_keypair()[1].decode())
        pair = cls(folder / name, folder / f"{name}.pub")
        pair.secret.touch(0o600)
        pair.secret.write_text(format_secret_key(key))
        pair.public.write_text(format_public_key(key.public()))
        return pair

    def to(self, server: "KeyPair") -> ClientKeys:
        """Return the keys of a client with this pair for that server."""
        keys = read_client_keys(server.public, self.secret)
        assert keys is not None
        return keys
