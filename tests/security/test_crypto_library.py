"""Which crypto library libzmq uses."""

import pytest
import zmq

from feeder.security.crypto_library import find_crypto_library


def test_the_wheel_of_pyzmq_has_libsodium() -> None:
    zmq.curve_keypair()
    name, path = find_crypto_library()
    assert name == "libsodium"
    assert path is None or path.name.startswith("libsodium")


def test_a_libzmq_without_curve_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda _: False)
    assert find_crypto_library() == ("none", None)
