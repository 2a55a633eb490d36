"""Files, rooms, make targets and subcommands that the documents mention exist."""

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

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


MIB = 1 << 20
NUMBERS: dict[str, dict[tuple[str, Any], str]] = {
    "limits.md": {
        ("node.zap_handler:_CHECK_INTERVAL_S", 1): "takes effect within a second",
        ("node.service:_SESSION_BITS", 63): "63 random bits",
        ("node.claim_listener:CALLERS_MAX", 64): "`PATH.slots` accepts 64 connections",
        ("session.fair_share:TOKENS_A_S", 64): "64 tokens a second",
        ("session.fair_share:EARNED", 8): "8 more for each chunk or batch taken",
        ("session.fair_share:BURST", 256): "256 at most",
        ("wire.messages:MAX_NAMES", 64): "64 in a request;",
        ("node.name_requests:WAITING_MAX", 64): "64 requests waiting",
        ("worker.filler:_NAMES_S", 0.02): "for 20 ms at most",
        ("node.name_requests:PAUSE", 9): "pauses nine times as long",
        ("node.clients:_WASTE_BYTES_A_S", 25e6): "25 MB/s",
        ("node.router:_FRAME_WASTE_BYTES", 4096): "or 6,000 frames/s",  # as many as 25 MB hold
        ("node.connections:CHECK_INTERVAL_S", 0.2): "checked every 0.2 s",
        ("node.connections:UNFINISHED_BYTES_MAX", 24 * MIB): "closed at 24 MiB",
        ("node.connections:UNFINISHED_TOTAL_BYTES_MAX", 512 * MIB): "together hold over 512 MiB",
        ("daemon.node_plan:_CONNECTIONS_A_CLIENT", 4): "4 × `clients_max`",
        ("daemon.node_plan:_CONNECTIONS_SPARE", 64): "`clients_max` + 64",
        ("node.connections:_IDLE_S", 5): "if that is over 5 s",
        ("node.polling:CONNECTIONS_A_S", 300): "300 new ones a second",
        ("node.polling:BURST", 512): "bursts of 512",
        ("process.log_lines:ADMITTED_MAX", 10): "is logged 10 times",
        ("process.log_lines:INTERVAL_S", 60): "10 times in 60 s",
        ("process.log_lines:KINDS_MAX", 256): "kinds beyond 256",
        ("monitoring.server:CONNECTIONS_MAX", 64): "the metrics' port | 64 connections",
        ("monitoring.server:ACCEPTS_A_S", 200): "200 new ones a second",
        ("monitoring.server:HEAD_BYTES_MAX", 8192): "8 KB of header",
        ("monitoring.server:DEADLINE_S", 5): "5 s for a request and 5 s to read its reply",
        ("session.worker_watch:CHUNK_DEADLINE_S", 30): "30 s at most, since its worker is killed",
        ("session.jobs:CREDIT_S", 1): "owed at most 1 s of a worker",
        ("session.jobs:_IDLE_MAX", 4096): "kept for 4,096 jobs",
        ("session.worker_watch:SILENT_S", 2): "no progress** with its chunk for 2 s",
        ("session.worker_watch:PATIENT_AFTER", 3): "for 3 times what such chunks take",
        ("session.worker_watch:KILL_AFTER", 10): "10 times what chunks of this",
        ("session.worker_watch:DEADLINE_MIN_S", 3): "3 s to 30 s",
        ("session.worker_watch:PATIENCE_S", 5): "that happens after 5 s, or 3 times",
        ("session.worker_watch:UNANSWERED_S", 36): "Its batches wait 36 s",
        ("session.dispatch:HANGS_MAX", 2): "Rows that two workers did not finish",
        ("daemon.node_process:HEARTBEATS.silent_s", 4): "without a heartbeat for 4 s",
        ("daemon.node_process:HEARTBEATS.most_s", 30): "or after 30 s, it is *hung*",
        ("dataset.first_read:ANSWER_DEADLINE_S", 30): "does not answer at the start after 30 s",
        ("pack.task_pool:_STALL_S", 600): "end after 10 minutes of silence",
        ("node.worker_pool:_BACKOFF_MAX_S", 5): "exponential backoff up to 5 s",
        ("process.backoff:BACKOFF_MAX_S", 10): "node processes up to 10 s",
    },
    "packing.md": {
        ("pack.spool:CONTAINER_SAMPLES", 65_536): "the last 65,536 samples",
        ("pack.spool:CONTAINER_BYTES", 1 << 30): "or 1 GiB at most",
        ("pack.options:_SHARD_BYTES", 256 * MIB): "one for each 256 MiB of images",
    },
    "serving.md": {
        ("node.datasets:RETRY_S", 5): "and tries again every 5 s",
        ("metrics.records:JOBS_MAX", 32): "for 32 jobs, the others as one",
    },
    "many-hosts.md": {
        ("client.endpoints:ENDPOINTS_MAX", 4096): "a list has up to 4,096",
        ("client.core.links:LINKS_MAX", 64): "and three spares, 64 at most",
        ("client.core.links:SPARES", 3): "and three spares",
        ("client.core.links:SESSIONS_A_FEEDER", 384): "384 sessions of the job on average",
    },
    "training.md": {
        ("client.core.node_link:QUIET_S", 2.5): "after 2.5 s without a byte",
        ("client.core.requests:_MARGIN", 1.5): "1.5 times the 99th percentile",
    },
}


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


def test_numbers_of_the_pages_are_those_of_the_code() -> None:
    """Tests of the limits themselves use the names, so that a larger number would pass them."""
    for page, numbers in NUMBERS.items():
        text = " ".join((REPOSITORY / "docs" / page).read_text("utf-8").split())
        for (name, value), phrase in numbers.items():
            assert phrase in text, f"{page} does not say: {phrase}"
            assert resolve_name(f"feeder.{name}") == value, f"{page}: {phrase}"


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
