"""What the documents name is there: files, rooms, targets of make, subcommands."""

import re
from pathlib import Path

import pytest

from bench.cli import build_parser as bench_parser
from feeder.cli.main import build_parser as feeder_parser
from tests.support.sources import REPOSITORY
from tests.test_directions import PARTS, TABLE

DOCUMENTS = [
    *REPOSITORY.glob("*.md"),
    *REPOSITORY.glob("docs/*.md"),
    *(REPOSITORY / name / "README.md" for name in ("feeder", "trainer_client", "bench")),
]
FOLDERS = [REPOSITORY, *(REPOSITORY / name for name in ("feeder", "trainer_client", "bench"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_files_targets_and_commands_that_a_document_names_are_there(document: Path) -> None:
    text = document.read_text("utf-8")
    if document.name == "CHANGELOG.md":  # names what was, too
        return
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / name).exists(), f"a link to {name}"
    for name in re.findall(r"`([\w.-][\w./-]*\.(?:py|md|toml|service|c|h))`", text):
        if "/" in name:
            assert any((folder / name).exists() for folder in FOLDERS), name
        else:  # in the folder that the sentence is about
            tops = ("feeder", "trainer_client", "bench", "tests", "systemd", "docs")
            found = (path for top in tops for path in (REPOSITORY / top).rglob(name))
            assert next(found, None) or (REPOSITORY / name).exists(), name
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?:`|^ {4})make ([a-z][a-z-]*)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for command, parser in (("feeder", feeder_parser()), ("feeder-bench", bench_parser())):
        usage = parser.format_help()
        for name in re.findall(rf"(?:`|^ {{4}}){command} ([a-z][a-z-]*)", text, re.MULTILINE):
            assert re.search(rf"^ +{name}\b", usage, re.MULTILINE), f"{command} {name}"


def test_the_picture_and_the_table_of_rooms_have_every_room() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    rooms = {name.replace(".", "/") for name in TABLE if name not in PARTS}
    inside = {room for room in rooms if not room.startswith(("bench", "trainer_client", "__"))}
    modules = {"feeder", "errors", "metrics", "remedies"}
    assert set(re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)) == inside - modules
    picture = text.partition("## The rooms")[2].partition("| room |")[0]
    for room in rooms - {"feeder", "__main__"}:
        if not room.startswith(("bench", "trainer_client/train")):
            assert re.search(rf"(?<![\w/]){room}(?![\w/])", picture), room
