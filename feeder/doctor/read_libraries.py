"""Looks at the daemon's libraries as this process loads them. Imports them, so it takes a second.

The versions are read from the libraries that were loaded, not from package lists: a list may name
one that has been overwritten.
"""

from dataclasses import replace
from typing import Final

from feeder.doctor.findings.facts import Libraries
from feeder.errors import FeederError, ResourceError
from feeder.installation import install_command, missing_packages

_REASON_LETTERS_MAX: Final = 200


def read_libraries() -> Libraries:
    """Return the libraries, their builds, and the results of their own checks."""
    found = Libraries(missing=missing_packages(), install=install_command("daemon"))
    if found.missing:  # the imports below need most of them
        return found
    try:
        found = _read_zmq(found)
        from feeder.jpeg.libraries import check_libraries

        check_libraries()
        found = _read_decoders(found)
    except ResourceError as error:
        return replace(found, problem=str(error))
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())[:_REASON_LETTERS_MAX]
        return replace(found, problem=f"a library does not load ({reason}): install it again")
    return found


def _read_zmq(found: Libraries) -> Libraries:
    import zmq

    from feeder.security.crypto_library import find_crypto_library

    versions = {"libzmq": zmq.zmq_version(), "pyzmq": zmq.pyzmq_version()}
    return replace(found, versions=versions, crypto=find_crypto_library()[0])


def _read_decoders(found: Libraries) -> Libraries:
    """Return ``found`` with everything about pixels."""
    from feeder.jpeg.decode import describe_decoder
    from feeder.jpeg.installed_pillow import find_pillow
    from feeder.jpeg.libraries import library_versions, pillow_has_avx2

    pillow = find_pillow()
    return replace(
        found,
        versions={**library_versions(), **found.versions},
        pillow_problems=pillow.warnings(),
        pillow_is_simd=pillow.is_simd,
        pillow_has_avx2=pillow_has_avx2(),
        decoder=describe_decoder("own"),
        self_test_problem=_run_self_test(),
    )


def _run_self_test() -> str:
    """Return why the self-test fails, "" if it passes."""
    from feeder.sample.self_test import compute_self_test

    try:
        compute_self_test()
    except FeederError as error:
        return str(error)
    return ""
