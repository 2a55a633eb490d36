"""Whether a node makes the same bytes as those that already serve this job."""

from feeder.client.core.answer_checks import check_welcome
from feeder.errors import DatasetError, FeederError, ProtocolError
from feeder.wire.agreement import Producer, find_disagreement
from feeder.wire.messages import Hello, Welcome


def find_incompatibility(
    hello: Hello, first: Welcome | None, welcome: Welcome, *, is_back: bool
) -> FeederError | None:
    """Return why a node that answers ``hello`` with ``welcome`` would make other bytes, or None.

    ``first`` is the welcome that all must agree with; ``is_back``: the endpoint served this job
    before.
    """
    try:
        check_welcome(hello, welcome)
    except ProtocolError as error:
        return error
    if first is None:
        return None
    if welcome.fingerprint != first.fingerprint:
        return DatasetError(_explain_dataset(hello.dataset, first, welcome, is_back))
    if welcome.labels != first.labels:  # buffers are of the first one's
        return ProtocolError(
            f"its labels of dataset {hello.dataset!r} are {_describe(welcome)}, those of "
            f"{first.node} {_describe(first)}, of the same fingerprint"
        )
    disagreement = find_disagreement(_producer(first), _producer(welcome))
    if disagreement is not None:
        return ProtocolError(f"{disagreement}; install the same ones on both")
    return None


def _explain_dataset(dataset: str, first: Welcome, welcome: Welcome, is_back: bool) -> str:
    if is_back:
        return (
            f"dataset {dataset!r} changed while the daemon restarted: its fingerprint is "
            f"{welcome.fingerprint}, it was {first.fingerprint}; serve the old one or restart the "
            "job"
        )
    return (
        f"dataset {dataset!r} there is not the one of {first.node}: its fingerprint is "
        f"{welcome.fingerprint}, not {first.fingerprint}; serve the same one everywhere"
    )


def _describe(welcome: Welcome) -> str:
    return f"{welcome.labels.kind} of width {welcome.labels.width}"


def _producer(welcome: Welcome) -> Producer:
    return Producer(welcome.node, welcome.self_test, welcome.libraries)
