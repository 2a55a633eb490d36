"""Locations: what is on this machine, patterns of several files, and what is not supported yet."""

import os
import socket
from pathlib import Path

import pytest

from feeder.errors import ConfigError, DatasetError, FeederError
from feeder.process.path_text import path_to_text
from feeder.source.location.find import find_file, find_files
from feeder.source.location.patterns import expand_braces
from tests.source.listings import put


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(root: Path, location: str) -> list[str]:
    return [os.path.relpath(path, root) for path in find_files(location)]


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("a.tar", "a.tar"),
        ("{8..11}", "8 9 10 11"),
        ("{08..11}", "08 09 10 11"),
        ("{0..10..5}", "0 5 10"),
        ("{c..a}{x,}", "cx c bx b ax a"),
        ("{a,b{1,2}c}-{3..4}", "a-3 a-4 b1c-3 b1c-4 b2c-3 b2c-4"),
        ("{train}{}", "{train}{}"),
        ("{a/{b,c},d}.tar", "a/b.tar a/c.tar d.tar"),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, expanded: str) -> None:
    assert expand_braces(pattern) == expanded.split()


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("{a", "unbalanced"),
        ("{0..1000000}", "over 1,000,000 files"),
        ("{0..999}{0..999}{0..1}", "over 1,000,000 files"),
    ],
)
def test_braces_that_cannot_be_expanded_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        expand_braces(pattern)


def test_files_of_a_pattern_are_sorted_and_come_once(here: Path) -> None:
    put(here, "s-000.tar s-001.tar s-010.tar other.txt deep/er/s-002.tar")
    assert names(here, "s-{000..001}.tar") == ["s-000.tar", "s-001.tar"]
    assert names(here, "s-{001,000,001}.tar") == ["s-000.tar", "s-001.tar"]
    assert names(here, "s-{0,00}*.tar") == ["s-000.tar", "s-001.tar", "s-010.tar"]
    assert names(here, "s-0[1-9]*") == ["s-010.tar"]
    assert names(here, str(here / "s-*.tar")) == names(here, "./s-*.tar")
    assert names(here, "**/s-00[12].tar") == ["deep/er/s-002.tar", "s-001.tar"]


def test_what_exists_literally_is_no_pattern(here: Path) -> None:
    put(here, "a[1].tar a1.tar {0..1}.tar 0.tar d{x,y}*/s-0.tar")
    odd = os.fsdecode(b"s\xff-0.tar")
    put(here, {odd: b""})
    for name in ("a[1].tar", "{0..1}.tar", odd):
        assert find_files(name) == (path_to_text(here / name),)
    assert find_files("d{x,y}*/") == (str(here / "d{x,y}*"),)
    assert names(here, "d{x,y}*/s-{0..0}.tar") == ["d{x,y}*/s-0.tar"]
    assert names(here, "d{x,y}*/*.tar") == ["d{x,y}*/s-0.tar"]
    assert find_files("s?-*.tar") == find_files(odd)


@pytest.mark.parametrize(
    ("location", "error", "problem"),
    [
        ("s-{000..002}.tar", DatasetError, "1 of the 3 files of s-.*found, .*s-001.tar first: cop"),
        ("{s,t}-*.tar", DatasetError, r"1 of the 2 files of \{s,t\}-\*.tar cannot be"),
        ("x-*.tar", DatasetError, r"no file matches x-\*.tar"),
        (f"{{{','.join(map('{:08d}'.format, range(50)))}}}.tar", DatasetError, "50 of the 50"),
        ("missing.tar", DatasetError, "source missing.tar does not exist"),
        ("dangling", DatasetError, "dangling is a dangling link"),
        ("socket", DatasetError, "a socket, not a regular file"),
        ("{one,two}", ConfigError, r"matches the folder .*/one and 1 more: a source is one folder"),
        ("", ConfigError, "the source is empty"),
        ("a\0b", ConfigError, r"a\\x00b is no path"),
        ("pipe:cat x", ConfigError, "commands are not run"),
    ],
)
def test_what_is_no_source_is_refused(
    here: Path, location: str, error: type[FeederError], problem: str
) -> None:
    put(here, "one/x two/x s-000.tar s-002.tar")
    (here / "dangling").symlink_to("nowhere")
    (here / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")  # in the working directory: its path may be too long
    with pytest.raises(error, match=problem):
        find_files(location)


def test_standard_input_is_a_pipe_or_the_file_itself(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(here, "x.tar")
    os.mkfifo(here / "pipe")
    (here / "link").symlink_to("x.tar")
    for name, found in (("x.tar", "x.tar"), ("link", "x.tar"), ("pipe", "pipe")):
        monkeypatch.setattr("feeder.source.location.find._STANDARD_INPUT", str(here / name))
        assert find_files("-") == (str((here / found).resolve()),)
    monkeypatch.setattr("feeder.source.location.find._STANDARD_INPUT", "/dev/null")
    with pytest.raises(ConfigError, match="standard input is neither a pipe nor a file"):
        find_files("-")


@pytest.mark.parametrize(
    ("location", "instead"),
    [
        ("s3a://bucket/x", r"s3a://bucket/x: write s3://bucket/x"),
        ("abfss://c@a/x/{0..3}.tar", r"`azcopy copy abfss://c@a/x/ DIR --recursive`"),
        ("ftp://host/x.tar", "ftp:// is not supported yet: .*`wget`"),
        ("hf://datasets/o/n", "`hf download ORG/NAME --repo-type dataset"),
        ("oci://b@n/x", "oci:// is not supported yet: copy the files here or mount them"),
        ("file:///data/x", "give the path alone, /data/x"),
    ],
)
def test_other_machines_are_refused_with_what_to_do_instead(
    here: Path, location: str, instead: str
) -> None:
    for find in (find_files, lambda name: find_file(name, "--labels")):
        with pytest.raises(ConfigError, match=instead):
            find(location)
