"""File names are bytes: the same source gives the same dataset, and names, in every locale.

Real commands run in processes of each locale. That of ISO-8859-1 is built here from Debian's
package `locales`; without it these tests are skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from feeder.dataset.manifest import load_manifest
from tests.support.sources import REPOSITORY, encoded, feeder_command, image

LATIN1 = "en_US.ISO-8859-1"
CLASSES = (b"\xfc", "ü".encode(), b"a class", b"two\nlines", "猫".encode())
NAMES = (b"one.jpg", "größe.jpg".encode(), b"\xff\xfe.jpg", b"a b\nc.jpg")


@pytest.fixture(scope="module")
def latin1(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the environment variables that select a locale with ISO-8859-1."""
    folder = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/charmaps").is_dir():
        pytest.skip("the sources of locales are missing: apt-get install locales")
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / LATIN1)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return {"LC_ALL": LATIN1, "LOCPATH": str(folder)}


@pytest.fixture(scope="module", params=["ascii", "latin-1"])
def environ(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Return the environment of a process in a locale, after checking that it takes effect."""
    settings: Mapping[str, str] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    if request.param == "latin-1":
        settings = request.getfixturevalue("latin1")
    whole = {**os.environ, **settings}
    program = "import codecs, sys; print(codecs.lookup(sys.getfilesystemencoding()).name)"
    seen = subprocess.check_output([sys.executable, "-c", program], env=whole, text=True)
    assert seen.strip().removeprefix("iso8859-1") == request.param.removeprefix("latin-1")
    return whole


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the path of a source; its names and the path's mix several encodings."""
    root = os.fsencode(tmp_path_factory.mktemp("names")) + "/Fü\n".encode() + b"\xe4"
    number = 0
    for folder in CLASSES:
        os.makedirs(os.path.join(root, folder))
        for name in NAMES:
            number += 1
            with open(os.path.join(root, folder, name), "wb") as file:
                file.write(encoded(image(seed=number)))
    with open(os.path.join(root, CLASSES[0], b"no image \xfd.jpg"), "wb") as file:
        file.write(b"no image")
    return root


def run(
    environ: Mapping[str, str], *arguments: str | bytes, status: int = 0
) -> "subprocess.CompletedProcess[bytes]":
    result = subprocess.run(
        [*map(os.fsencode, feeder_command()), *map(os.fsencode, arguments)],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        timeout=120,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == status, output.decode(errors="replace")
    assert b"Traceback" not in output
    return result


def names_below(root: bytes) -> set[bytes]:
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, _, files in os.walk(root)
        for name in files
    }


@pytest.fixture(scope="module")
def expected(source: bytes, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Return the fingerprint of the packed source and the bytes of its quarantine list."""
    packed = tmp_path_factory.mktemp("expected") / "packed"
    run({**os.environ, "LC_ALL": "C.UTF-8"}, "pack", source, bytes(packed))
    manifest = load_manifest(packed)
    stored = sorted(folder.decode("utf-8", "surrogateescape") for folder in CLASSES)
    assert list(manifest.classes) == stored
    return manifest.fingerprint, (packed / "quarantine.jsonl").read_bytes()


@pytest.fixture(scope="module")
def packed(
    environ: Mapping[str, str], source: bytes, tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    """The source, packed in a locale, in a folder whose name mixes encodings."""
    folder = os.fsencode(tmp_path_factory.mktemp("packed")) + "/gepäckt".encode() + b"\xe4\n"
    os.mkdir(folder)
    run(environ, "pack", source, folder + b"/packed")
    return folder + b"/packed"


def test_every_locale_packs_verifies_and_unpacks_the_same(
    environ: Mapping[str, str], packed: bytes, expected: tuple[str, bytes], tmp_path: Path
) -> None:
    out = bytes(tmp_path) + b"/out-\xfc"
    with open(packed + b"/manifest.json", "rb") as file:
        assert json.loads(file.read())["fingerprint"] == expected[0]
    with open(packed + b"/quarantine.jsonl", "rb") as file:
        assert file.read() == expected[1]
    run(environ, "verify", packed)
    run(environ, "unpack", packed, out)
    assert names_below(out) == {os.path.join(below, name) for below in CLASSES for name in NAMES}


def test_every_locale_serves_from_any_folder_and_its_clients_get_the_names(
    environ: Mapping[str, str], packed: bytes, tmp_path: Path
) -> None:
    folder = os.fsencode(tmp_path) + "/Daten-ü".encode()
    config = tmp_path / "feeder.toml"
    os.symlink(packed, folder)
    config.write_text('[data]\nfile = "Daten-ü"\n', "utf-8")
    os.symlink(folder, folder + b"\xfc")
    options = ("--config", str(config), "--workers", "1", "--bind", f"ipc://{tmp_path}/n")
    daemon = subprocess.Popen(
        [*map(os.fsencode, feeder_command("serve", *options)), b"--data=line=" + folder + b"\xfc"],
        cwd=REPOSITORY,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert daemon.stdout is not None
        lines = []
        while b"ready" not in (line := daemon.stdout.readline()):
            lines.append(line)
            assert line, b"".join(lines).decode(errors="replace")
        for name in ("file", "line"):
            sheet = bytes(tmp_path / f"{name}.png")
            run(
                environ,
                *("preview", "--from", f"ipc://{tmp_path}/n", "--dataset", name, "--out", sheet),
                *("--batch-size", "4", "--image-size", "32"),
            )
            assert os.path.getsize(sheet) > 0
        run(environ, "status", f"ipc://{tmp_path}/n")
    finally:
        daemon.terminate()
        daemon.communicate()
    assert daemon.returncode == 0


def test_ipc_path_that_libzmq_would_decode_differently_is_refused(
    environ: Mapping[str, str],
) -> None:
    refused = run(environ, "serve", "--data=d=/none", "--bind", b"ipc:///run/\xfc", status=2)
    assert b"is not UTF-8 in this locale" in refused.stderr
