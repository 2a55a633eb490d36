"""Looks at the daemon's libraries as this process loads them. Imports them, so it takes a second.

The versions are read from the libraries that were loaded, not from package lists: a list may name
one that has been overwritten.
"""

import importlib.util

from feeder.doctor.findings.facts import Libraries
from feeder.errors import FeederError, ResourceError


def read_libraries() -> Libraries:
    """Return the libraries, their builds, and the results of their own checks."""
    crypto, zmq_versions = _read_zmq()
    if importlib.util.find_spec("numpy") is None:
        return Libraries(
            versions=zmq_versions,
            problem="numpy is not installed in this environment: install feeder[daemon]",
            crypto=crypto,
        )
    from feeder.jpeg.libraries import check_libraries

    try:
        check_libraries()
    except ResourceError as error:
        return Libraries(versions=zmq_versions, problem=str(error), crypto=crypto)
    from feeder.jpeg.decode import describe_decoder
    from feeder.jpeg.installed_pillow import find_pillow
    from feeder.jpeg.libraries import library_versions, pillow_has_avx2

    pillow = find_pillow()
    return Libraries(
        versions=library_versions() | zmq_versions,
        pillow_problems=pillow.warnings(),
        pillow_is_simd=pillow.is_simd,
        pillow_has_avx2=pillow_has_avx2(),
        decoder=describe_decoder("own"),
        self_test_problem=_run_self_test(),
        crypto=crypto,
    )


def _read_zmq() -> tuple[str, dict[str, str]]:
    try:
        import zmq

        from feeder.security.crypto_library import find_crypto_library

        return find_crypto_library()[0], {"libzmq": zmq.zmq_version(), "pyzmq": zmq.pyzmq_version()}
    except (ImportError, OSError):
        return "", {}


def _run_self_test() -> str:
    """Return why the self-test fails, "" if it passes."""
    from feeder.sample.self_test import compute_self_test

    try:
        compute_self_test()
    except FeederError as error:
        return str(error)
    return ""
