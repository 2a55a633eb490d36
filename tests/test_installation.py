"""Contents of the wheel and the source archive; commands where a library is missing."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainer_client
from feeder import installation
from tests.support.sources import REPOSITORY

BASE = ("numpy", "numpy.libs", "zmq", "pyzmq.libs", "msgspec")
DECODING = ("PIL", "turbojpeg.py", "psutil", "xxhash")


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, **variables},
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git checkout of this working tree's tracked files."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: the archive's contents are compared with git's list")
    folder = tmp_path_factory.mktemp("checkout")
    listed = run("git", "-C", REPOSITORY, "ls-files", "-z").stdout.split("\0")
    for name in filter(None, listed):
        if (REPOSITORY / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name, follow_symlinks=False)
    author = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    for arguments in (
        ("init", "--quiet"),
        ("add", "--all"),
        (*author, "commit", "-qm", "snapshot"),
    ):
        done = run("git", "-C", folder, *arguments)
        assert done.returncode == 0, done.stderr
    return folder


def build(kind: str, checkout: Path, folder: Path, **environment: str) -> Path:
    """Build a ``wheel`` or an ``sdist`` with setuptools, as pip does; return the archive."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    made = run("env", "-C", checkout, sys.executable, "-c", code, **environment)
    assert made.returncode == 0, made.stderr
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def bare_wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a compiler."""
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"), CC="/bin/false")


def environment_with(wheel: Path, folder: Path, libraries: tuple[str, ...]) -> Path:
    """Create a virtual environment of the wheel and links to ``libraries``; return its bin."""
    venv.create(folder, symlinks=True)
    packages = (
        folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    )
    numpy = find_spec("numpy")
    assert numpy is not None
    assert numpy.origin is not None
    for name in libraries:
        source = Path(numpy.origin).parents[1] / name
        if source.exists():  # not every wheel bundles libraries
            (packages / name).symlink_to(source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python")
    installed = run(*pip, folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def base(bare_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_with(bare_wheel, tmp_path_factory.mktemp("base"), BASE)


def test_wheel_built_without_a_compiler_has_everything_but_c_sources(
    bare_wheel: Path,
) -> None:
    names = set(zipfile.ZipFile(bare_wheel).namelist())
    wanted = {
        str(path.relative_to(REPOSITORY))
        for top in ("feeder", "feeder/bench", "trainer_client")
        for path in (REPOSITORY / top).rglob("*")
        if path.suffix in {".py", ".pyi", ".jpg", ".typed"}
    }
    assert wanted <= names
    assert {name for name in names if name.endswith((".c", ".h", ".so"))} == set()
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        *("feeder", "trainer_client", "feederd")
    }


def test_wheel_built_with_a_compiler_has_the_extensions_and_no_c_sources(
    checkout: Path, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"  # a stub that creates empty output files
    compiler.write_text(
        '#!/bin/sh\nfor word; do [ "$last" = -o ] && : >"$word"; last=$word; done\n'
    )
    compiler.chmod(0o755)
    (tmp_path / "made").mkdir()
    wheel = build("wheel", checkout, tmp_path / "made", CC=str(compiler))
    names = zipfile.ZipFile(wheel).namelist()
    extensions = {name.partition(".")[0] for name in names if name.endswith(".so")}
    assert extensions == {"feeder/jpeg/_native", "trainer_client/_native"}
    assert [name for name in names if name.endswith((".c", ".h"))] == []


def test_source_archive_has_every_tracked_file(checkout: Path, tmp_path: Path) -> None:
    listed = run("git", "-C", checkout, "ls-files", "-z").stdout.split("\0")
    with tarfile.open(build("sdist", checkout, tmp_path)) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {*listed} - held == set()


def test_engine_loads_without_torch_and_decoders(base: Path) -> None:
    code = """
        import importlib, pkgutil, sys
        import feeder.client
        for each in pkgutil.walk_packages(feeder.client.__path__, "feeder.client."):
            importlib.import_module(each.name)
        print(*sys.modules)
    """
    loaded = run(base / "python", "-I", "-c", "if True:" + code)
    assert loaded.returncode == 0, loaded.stderr
    modules = loaded.stdout.split()
    assert {"feeder.client.core.session", "feeder.client.transport", "numpy", "zmq"} <= {*modules}
    foreign = {"torch", "PIL", "turbojpeg", "psutil", "xxhash", "feeder.jpeg"}
    assert not foreign & {*modules, *(name.split(".")[0] for name in modules)}


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [
        ("feeder pack src dst", "PIL", "daemon"),
        ("feeder verify dst", "xxhash", "daemon"),
        ("feeder unpack dst out", "xxhash", "daemon"),
        ("feeder serve --data n=dst --bind ipc:///nowhere/socket", "xxhash", "daemon"),
        ("feeder preview dst --out sheet.png", "PIL", "daemon"),
        ("feeder preview tcp://127.0.0.1:1 --dataset n --out sheet.png", "PIL", "daemon"),
        *(
            (f"feeder-bench {bench}", "xxhash", "daemon")
            for bench in ("decode", "compare a b", "likeness src")
        ),
        ("python -m feeder.bench.demo", "PIL", "daemon"),
        ("python -m trainer_client.train tcp://127.0.0.1:1 --dataset d", "torch", "client"),
    ],
)
def test_commands_name_a_missing_library_in_one_line(
    base: Path, bare_wheel: Path, tmp_path: Path, command: str, library: str, extra: str
) -> None:
    name, *arguments = command.split()
    answer = run("env", "-C", tmp_path, base / name, *arguments)
    assert answer.stderr.count("\n") == 1, answer.stderr
    assert f"error: the library {library} is not installed in this environment" in answer.stderr
    assert answer.stderr.endswith(f": pip install '{bare_wheel}[{extra}]'\n")
    assert answer.returncode == 4
    assert [*tmp_path.iterdir()] == []


def test_client_commands_need_no_extra(base: Path, tmp_path: Path) -> None:
    answer = run(base / "feeder", "keygen", tmp_path / "key")
    assert (answer.returncode, answer.stderr) == (0, "")
    keys = ("--server-key", tmp_path / "key.pub", "--client-key", tmp_path / "none")
    answer = run(base / "feeder", "status", "tcp://127.0.0.1:1", *keys)
    assert f"{tmp_path}/none" in answer.stderr
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)


def test_a_daemon_without_its_extension_fails_in_one_line_and_with_it_the_bench_runs(
    bare_wheel: Path, tmp_path: Path
) -> None:
    described = f"pyturbojpeg-{version('PyTurboJPEG')}.dist-info"
    scripts = environment_with(bare_wheel, tmp_path / "venv", (*BASE, *DECODING, described))
    (tmp_path / "dst").mkdir()
    bind = f"ipc://{tmp_path}/socket"
    for command in (
        ("feeder", "serve", "--data", f"n={tmp_path}/dst", "--bind", bind),
        ("feeder", "pack", tmp_path / "dst", tmp_path / "out"),
        ("feeder-bench", "decode"),
    ):
        answer = run(scripts / command[0], *command[1:])
        assert "the daemon's C extension is not built" in answer.stderr
        assert "gcc libjpeg-dev libturbojpeg0-dev), then build the wheel again" in answer.stderr
        assert (answer.returncode, answer.stderr.count("\n")) == (4, 1), answer.stderr
    (package,) = (tmp_path / "venv").glob("lib/python*/site-packages/feeder/jpeg")
    for built in (REPOSITORY / "feeder" / "jpeg").glob("_native*.so"):
        (package / built.name).symlink_to(built)
    drawing = "synthetic drawn --images 2 --classes 1 --jobs 2"
    for bench in (drawing, "links --feeders 4 --seconds 0.1"):  # both start processes of the bench
        answer = run("env", "-C", tmp_path, scripts / "feeder-bench", *bench.split())
        assert answer.returncode == 0, answer.stderr


WHEEL = "feederd-0.1.0-cp311-cp311-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://{}/a%20folder", "dir_info": {}}, "'{}/a folder[daemon,ray]'"),
        ({"url": "file://{}/" + WHEEL, "archive_info": {}}, "'{}/" + WHEEL + "[daemon,ray]'"),
        ({"url": "file://{}/gone", "dir_info": {}}, "'ray==2.60.*' 'xxhash>=3.4'"),
        (None, "'ray==2.60.*' 'xxhash>=3.4'"),
        (
            {"url": "https://x/f.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}},
            "'feederd[daemon,ray] @ git+https://x/f.git@1f'",
        ),
        (
            {"url": f"https://x/{WHEEL}", "archive_info": {}},
            f"'feederd[daemon,ray] @ https://x/{WHEEL}'",
        ),
    ],
)
def test_the_advice_names_what_this_copy_was_installed_from(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    origin: dict[str, object] | None,
    command: str,
) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / WHEEL).touch()
    described = tmp_path / "feederd-0.1.0.dist-info"
    described.mkdir()
    needed = ('ray==2.60.*; extra == "ray"', 'xxhash>=3.4; extra == "daemon"', "numpy>=1.26")
    (described / "METADATA").write_text(
        "Name: feederd\nVersion: 0.1.0\n" + "".join(f"Requires-Dist: {each}\n" for each in needed)
    )
    if origin is not None:
        text = json.dumps(origin).replace("{}/", f"{tmp_path}/")
        (described / "direct_url.json").write_text(text)
    monkeypatch.setattr(installation, "_ROOT", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    expected = "pip install " + command.replace("{}", str(tmp_path))
    assert installation.install_command("daemon", "ray") == expected


def test_a_checkout_installs_itself_and_a_copy_of_the_folder_does_not_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = installation.install_command("daemon")
    assert command == f"pip install --editable '{REPOSITORY}[daemon]'"
    assert installation.rebuild_command() == f"run `pip install --editable {REPOSITORY}` again"
    monkeypatch.setattr(installation, "_ROOT", str(tmp_path))
    monkeypatch.setattr(installation, "DISTRIBUTION", "not-installed")
    assert installation.install_command("daemon") == "pip install 'PATH-TO-FEEDER[daemon]'"


def test_every_public_name_of_the_client_resolves() -> None:
    assert {"Batch", "FeederLoader", "PeerError"} <= {*trainer_client.__all__}
    for name in trainer_client.__all__:
        assert hasattr(trainer_client, name), name
    assert trainer_client.PeerError.__module__ == "feeder.errors"
