"""The conditions in which a part of the daemon does not work, or not yet."""

from typing import Final

from feeder.diagnosis.facts import Facts, name_client, verdict
from feeder.diagnosis.worker_interval import WorkerInterval
from feeder.metrics.hangs import STATE_WORDS
from feeder.metrics.report import Verdict

LONG_SILENCE_S: Final = 5.0
"""A busy hard disk takes less for a chunk."""

FAILED_S: Final = 3.0
"""How long a failed batch counts."""

FAILED_LAST_S: Final = 60.0
"""The same, if no batch of its dataset has been made since: its job may have ended of it."""

UNHEARD_S: Final = 2.4
"""Within this time clients have sent the two pings that show how long they wait."""

SILENT_CLIENT_S: Final = 2.0
"""Clients ping every second."""

_MENDS: Final = {
    "bad-sample": "find all damaged samples with `feeder verify`, and pack the dataset again",
    "unreadable": "check its folder with `feeder verify`",
    "stalled-storage": "check the disk or file system that its folder is on",
}
_MENDS_OTHER: Final = "the daemon's log has each failure"

LOOPING_SHARE: Final = 0.5
"""A worker that could run and uses less of a CPU lacks CPU time: others use it, or a quota."""


def node_down(facts: Facts) -> Verdict | None:
    """A node process sends no heartbeats, or is being ended or restarted."""
    down = [n for n in facts.report.nodes if n.state in ("silent", "hung", "restarting")]
    if not down:
        return None
    node, others = down[0], len(facts.report.nodes) - len(down)
    more = f" and {len(down) - 1} more" if len(down) > 1 else ""
    return verdict(
        "node-down",
        f"node process {node.number}{more} is {node.state}, "
        f"{node.restarts} restart{'' if node.restarts == 1 else 's'} so far, "
        f"{others} of {len(facts.report.nodes)} serve; its last messages are in the daemon's log",
    )


def draining(facts: Facts) -> Verdict | None:
    """The daemon is ending."""
    if not any(node.state == "draining" for node in facts.report.nodes):
        return None
    return verdict("draining", "the daemon finishes requested batches and ends", is_problem=False)


def stalled_storage(facts: Facts) -> Verdict | None:
    """Reads of a dataset do not return."""
    names = sorted(
        {name for node in facts.report.nodes if node.now for name in node.now.stalled_datasets}
    )
    if not names:
        return _all_wait(facts)
    return verdict(
        "stalled-storage",
        f"reads of dataset {', '.join(names[:3])} do not return, its batches are held up; check "
        "the disk or file system that its folder is on",
    )


def _all_wait(facts: Facts) -> Verdict | None:
    """Most workers sleep for long: of all that they wait for, only storage takes so long."""
    workers = [worker for node in facts.interval.nodes for worker in node.workers]
    waiting = [
        worker
        for worker in workers
        if _is_silent(worker) and worker.kernel_state in ("sleeps", "storage")
    ]
    if len(waiting) < 2 or 2 * len(waiting) < len(workers):
        return None
    longest_s = max(worker.silent_s for worker in waiting)
    return verdict(
        "stalled-storage",
        f"{len(waiting)} of {len(workers)} workers have waited for up to {longest_s:.0f} s, as for "
        "reads that do not return; check the disk or file system of the datasets",
    )


def silent_worker(facts: Facts) -> Verdict | None:
    """A worker makes no progress, or was just replaced for that.

    One that waits for slow storage is silent for some seconds, too: only the daemon's decision to
    replace it, or a longer silence, tells them apart.
    """
    for node in facts.interval.nodes:
        for worker in node.workers:
            if _is_silent(worker):
                state = f", {STATE_WORDS[worker.kernel_state]}" if worker.kernel_state else ""
                return verdict(
                    "silent-worker",
                    f"worker {worker.number} (pid {worker.pid}{state}) of node process "
                    f"{node.number} has made no progress for {worker.silent_s:.1f} s; it is "
                    "replaced at its chunk's deadline, the log says what it was doing",
                )
    killed = sum(node.workers_killed for node in facts.interval.nodes)
    if not killed:
        return None
    s, was = ("", "was") if killed == 1 else ("s", "were")
    return verdict(
        "silent-worker",
        f"{killed} worker{s} made no progress and {was} replaced in the last "
        f"{facts.interval.seconds:.0f} s; the log says which, and what it was doing",
    )


def _is_silent(worker: WorkerInterval) -> bool:
    """Whether it is silent for a reason of its own: not slow storage, not a lack of CPU time."""
    if worker.state != "silent":
        return False
    if worker.kernel_state in ("stopped", "traced"):
        return True
    is_starved = worker.kernel_state == "runs" and worker.cpu_share < LOOPING_SHARE
    return worker.silent_s >= LONG_SILENCE_S and not is_starved


def failing_batches(facts: Facts) -> Verdict | None:
    """Batches of a dataset cannot be made."""
    failures = [failure for node in facts.report.nodes if node.now for failure in node.now.failures]
    failing = [
        failure
        for failure in failures
        if failure.ago_s < FAILED_S or (failure.is_last and failure.ago_s < FAILED_LAST_S)
    ]
    if not failing:
        return None
    last = min(failing, key=lambda failure: failure.ago_s)
    if last.reason == "dataset":
        return verdict("failing-batches", last.message)
    failed = sum(failure.batches for failure in failing if failure.dataset == last.dataset)
    return verdict(
        "failing-batches",
        f"{failed:,} batch{'' if failed == 1 else 'es'} of dataset {last.dataset} could not be "
        f"made, the last one {last.ago_s:.0f} s ago ({last.reason}): {last.message[:200]}; "
        f"{_MENDS.get(last.reason, _MENDS_OTHER)}",
    )


def silent_client(facts: Facts) -> Verdict | None:
    """A client with a session sends nothing, not even its pings."""
    silent = [
        client
        for node in facts.report.nodes
        if node.now
        for client in node.now.clients
        if client.silent_s >= SILENT_CLIENT_S
    ]
    if not silent:
        return None
    longest = max(silent, key=lambda client: client.silent_s)
    count = len({(client.account, client.name) for client in silent})
    more = f" and {count - 1} more" if count > 1 else ""
    where = "its process" if longest.is_lent else "its process, or the network between,"
    return verdict(
        "silent-client",
        f"nothing has come from {name_client(longest)}{more} for {longest.silent_s:.1f} s, not "
        f"even pings, {longest.wanted} of its {longest.window} batches are wanted or not released; "
        f"{where} has stopped or hangs",
    )


def starting(facts: Facts) -> Verdict | None:
    """There is nothing to judge yet."""
    waiting = [node for node in facts.report.nodes if node.state == "starting"]
    if waiting:
        processes = "process is" if len(waiting) == 1 else "processes are"
        return verdict(
            "starting", f"{len(waiting)} node {processes} not ready yet", is_problem=False
        )
    is_unheard = bool(facts.interval.clients) and facts.interval.wait_share is None
    if facts.longer.seconds < (UNHEARD_S if is_unheard else 1.0):
        return verdict("starting", "rates are known in a few seconds", is_problem=False)
    return None
