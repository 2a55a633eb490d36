"""Files, rooms, make targets and subcommands that the documents mention exist."""

import re
from pathlib import Path

import pytest

from bench.cli import build_parser as bench_parser
from feeder.cli.main import build_parser as feeder_parser
from tests.support.sources import REPOSITORY
from tests.test_directions import PARTS, TABLE

DOCUMENTS = [
    *(path for path in REPOSITORY.glob("*.md") if path.name != "CHANGELOG.md"),  # has past names
    *REPOSITORY.glob("docs/*.md"),
    *(
        REPOSITORY / name / "README.md"
        for name in ("feeder", "trainer_client", "bench", "docs/examples")
    ),
]
LINK = re.compile(r"\]\(([^)#:]+)\)")
FILE = re.compile(r"`([\w.-][\w./-]*\.(?:py|md|toml|service|c|h))`")
TARGET = re.compile(r"(?:`|^ {4})make ([a-z][a-z-]*)", re.MULTILINE)
COMMANDS = {
    name: (parser, re.compile(rf"(?:`|^ {{4}}){name} ([a-z][a-z-]*)", re.MULTILINE))
    for name, parser in (("feeder", feeder_parser()), ("feeder-bench", bench_parser()))
}
FOLDERS = [REPOSITORY, *(REPOSITORY / name for name in ("feeder", "trainer_client", "bench"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_files_targets_and_commands_in_a_document_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    for name in LINK.findall(text):
        assert (document.parent / name).exists(), f"a link to {name}"
    for name in FILE.findall(text):
        if "/" in name:
            assert any((folder / name).exists() for folder in FOLDERS), name
        else:  # relative to the folder that the sentence is about
            tops = ("feeder", "trainer_client", "bench", "tests", "systemd", "docs")
            found = (path for top in tops for path in (REPOSITORY / top).rglob(name))
            assert next(found, None) or (REPOSITORY / name).exists(), name
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    for target in TARGET.findall(text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for command, (parser, pattern) in COMMANDS.items():
        usage = parser.format_help()
        for name in pattern.findall(text):
            assert re.search(rf"^ +{name}\b", usage, re.MULTILINE), f"{command} {name}"


def test_nothing_advises_to_install_a_project_of_the_index_that_others_own_or_could() -> None:
    """There, `feeder` is another project and `feederd` is free."""
    named = re.compile(r"\bfeederd?\[[a-z]|pip install ['\"]?feederd?\b(?!/)")
    texts = {*DOCUMENTS, *(path for top in FOLDERS[1:] for path in top.rglob("*.py"))}
    assert [str(path) for path in texts if named.search(path.read_text("utf-8"))] == []
    assert named.search("pip install 'feeder[daemon]'")


def test_each_kind_of_mention_occurs() -> None:
    """Otherwise a pattern that matches nothing would pass everywhere."""
    text = "\n".join(document.read_text("utf-8") for document in DOCUMENTS)
    for pattern in (LINK, FILE, TARGET, *(pattern for _, pattern in COMMANDS.values())):
        assert pattern.search(text), pattern.pattern


def test_the_architecture_diagram_and_table_list_every_room() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    rooms = {name.replace(".", "/") for name in TABLE if name not in PARTS}
    inside = {room for room in rooms if not room.startswith(("bench", "trainer_client", "__"))}
    modules = {"feeder", "errors", "installation", "remedies"}
    assert set(re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)) == inside - modules
    picture = text.partition("## The rooms")[2].partition("| room |")[0]
    for room in rooms - {"feeder", "__main__"}:
        if not room.startswith(("bench", "trainer_client/train", "trainer_client/evaluate")):
            assert re.search(rf"(?<![\w/]){room}(?![\w/])", picture), room


def test_the_readme_links_every_page() -> None:
    linked = set(LINK.findall((REPOSITORY / "README.md").read_text("utf-8")))
    pages = {f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")}
    pages |= {f"docs/{path.parent.name}/README.md" for path in REPOSITORY.glob("docs/*/README.md")}
    assert pages - linked == set()


def test_every_picture_of_the_docs_is_shown_and_below_1_mb() -> None:
    docs = REPOSITORY / "docs"
    pictures = [path for path in docs.glob("*.*") if path.suffix != ".md"]
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    shown = {name.removeprefix("docs/") for name in LINK.findall(readme)}
    shown.update(*(LINK.findall(page.read_text("utf-8")) for page in docs.glob("*.md")))
    assert {path.name for path in pictures} - shown == set()
    assert max(path.stat().st_size for path in pictures) < 1 << 20
