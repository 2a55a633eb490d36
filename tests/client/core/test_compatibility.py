"""Incompatible nodes: an error at the start, left out later, and used again when mended."""

import re

import pytest

from feeder.client.core.events import (
    Dial,
    HangUp,
    Instruction,
)
from feeder.client.core.links import LEFT_OUT_S
from feeder.errors import ConfigError, DatasetError, FeederError, ProtocolError
from feeder.plan.labels import LabelSpec
from feeder.wire.messages import Bye, Refused
from tests.client.core.test_links import (
    ENDPOINTS,
    NEXT,
    NODES,
    OWNER,
    greet,
    join,
    pass_time,
    serve,
)
from tests.support.client_shell import (
    Shell,
    asked,
    lent,
    sends,
)

MISFITS = [
    (
        {"content": "f2"},
        DatasetError,
        "'birds' there is not the one of a: its content fingerprint is f2, not f1; serve the same",
    ),
    ({"recipe_fingerprint": "r2"}, ProtocolError, "there reads the recipe differently"),
    (
        {"labels": LabelSpec(kind="multi", width=2)},
        ProtocolError,
        "its labels of dataset 'birds' are multi of width 2, those of a index of width 1",
    ),
    (
        {"labels": LabelSpec(kind="none")},
        ProtocolError,
        "it describes no possible dataset: it has 2 classes, its labels are of kind none",
    ),
    (
        {"piece": 2},
        DatasetError,
        "dataset 'birds' there has other sizes than that of a, .* samples in pieces of 2, not .* "
        r'in pieces of 1; pass recipe={"working_set": \[\d+, 1\]}, or serve copies of the same',
    ),
    (
        {"self_test": "6" * 32, "libraries": {"libjpeg": "9"}},
        ProtocolError,
        "a and b would make different batches of the same dataset: .* libjpeg 9",
    ),
]


CONTRADICTIONS = [
    ({"dataset": "fish"}, "it grants dataset 'fish', 'birds' was requested"),
    ({"window": 3}, "it grants 3 batches at once, 2 were requested"),
    ({"batches": 11}, "it counts 11 batches of 4 in 40 samples, there are 10"),
    ({"batches": 9}, "it counts 9 batches"),
    ({"lanes": 3}, "it counts 3 lanes in 40 samples, there are 1"),
    (
        {"working_set": 9},
        "it describes no possible order: recipe: working_set .* too few for 1 lane",
    ),
]


@pytest.mark.parametrize(("fields", "text"), CONTRADICTIONS)
def test_a_welcome_that_does_not_answer_the_hello_is_an_error(
    fields: dict[str, object], text: str
) -> None:
    shell = Shell(ENDPOINTS[0])
    join(shell, 0, **fields)
    with pytest.raises(ProtocolError, match=f"{ENDPOINTS[0]}: {text}"):
        shell.session.check()


@pytest.mark.parametrize(("fields", "kind", "text"), MISFITS)
def test_an_incompatible_node_is_an_error_at_the_start_and_left_out_after_the_first_batch(
    fields: dict[str, object], kind: type[FeederError], text: str
) -> None:
    shell = Shell(*ENDPOINTS[:2])
    join(shell, 0)
    assert asked(join(shell, 1, **fields), 1) == []
    with pytest.raises(kind, match=f"{ENDPOINTS[1]}: .*{text}"):
        shell.session.check()
    shell, _ = serve(1)
    shell.answer(0)
    assert shell.take_key() == (0, 0)
    shell.change_list(*ENDPOINTS[:2])
    out = join(shell, 1, **fields)
    (warning,) = shell.warnings
    assert warning.startswith(f"left out: {ENDPOINTS[1]}: ")
    assert re.search(text, warning)
    assert re.search(r" \(node .+, session [0-9a-f]{8}\)$", warning)
    assert asked(out + pass_time(shell, 5.0, 0), 1) == []
    assert len(shell.session.links.left_out) == 1
    assert shell.session.error is None
    shell.answer(1)
    assert shell.take_key() == (0, 1)


def leave_out(shell: Shell, link: int) -> list[Instruction]:
    return shell.find_incompatibility(ProtocolError(f"garbage of {NODES[link]}"), link)


@pytest.mark.parametrize(
    "word",
    [
        Refused(code="unknown-dataset", message="no birds"),
        Refused(code="bad-recipe", message="what is this"),
        Refused(code="version", message="version 9"),
        lent(0, 3, session=OWNER + 1),
    ],
)
def test_a_node_that_refuses_for_good_or_breaks_the_protocol_is_left_out_later(
    word: Refused,
) -> None:
    shell, _ = serve()
    shell.answer(2, NEXT, session=NEXT + 1)
    shell.answer(0, OWNER, session=OWNER + 1)
    assert shell.take_key() == (0, 0)
    out = shell.receive(word, OWNER)
    assert sends(out, OWNER) == [Bye(session=OWNER + 1)]
    assert (0, 1) in asked(out, NEXT)
    assert len(shell.warnings) == 1
    assert len(shell.session.links.left_out) == 1


def test_an_endpoint_that_cannot_be_dialled_is_an_error_at_the_start() -> None:
    shell = Shell(*ENDPOINTS[:2])
    shell.find_incompatibility(ConfigError("it cannot be dialled"), 1)
    with pytest.raises(ConfigError, match=f"{ENDPOINTS[1]}: it cannot be dialled"):
        shell.session.check()


def leave_out_next() -> Shell:
    """Return a client that has taken a batch and left out the second of its nodes."""
    shell, _ = serve()
    shell.answer(0, OWNER, session=OWNER + 1)
    shell.take_keys()
    leave_out(shell, NEXT)
    return shell


def test_a_node_that_is_left_out_is_reported_once_and_dialled_again_after_a_while() -> None:
    shell = leave_out_next()
    assert NEXT not in shell.links
    for link in (2, 3):
        before = shell.run_until(shell.now_s + LEFT_OUT_S - 0.5)
        assert not [out for out in before if isinstance(out, Dial | HangUp) and out.link != OWNER]
        after = shell.run_until(shell.now_s + 1.0)
        assert [out for out in after if isinstance(out, Dial)] == [Dial(link, ENDPOINTS[NEXT])]
        assert len(shell.session.links.left_out) == 1, "it is not known yet whether it serves"
        shell.find_incompatibility(ProtocolError(f"garbage of {NODES[NEXT]}"), link)
    assert len(shell.warnings) == 1
    assert f"{ENDPOINTS[NEXT]}: garbage of {NODES[NEXT]}" in shell.session.explain(0.0)
    shell.run_until(shell.now_s + LEFT_OUT_S)
    assert sends(shell.connect(4), 4)[0] == shell.session.job.hello
    shell.receive(greet(9, shell, node=NODES[NEXT]), 4)  # it was replaced
    assert shell.session.links.by_number[4].is_served
    assert not shell.session.links.left_out


def test_when_all_nodes_are_left_out_the_job_ends() -> None:
    shell = leave_out_next()
    assert shell.session.error is None
    leave_out(shell, OWNER)
    with pytest.raises(ProtocolError, match=f"{ENDPOINTS[OWNER]}: garbage of {NODES[OWNER]}"):
        shell.session.take()
