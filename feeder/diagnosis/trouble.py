"""The conditions in which a part of the daemon does not work, or not yet.

Each returns the evidence and the next step; None where it does not hold.
"""

from typing import Final

from feeder.diagnosis.facts import Facts, Finding, and_more, name_client
from feeder.diagnosis.interval import WorkerInterval
from feeder.metrics.figures import plural
from feeder.metrics.hangs import STATE_WORDS

LONG_SILENCE_S: Final = 5.0  # a busy hard disk takes less for a chunk
FAILED_S: Final = 3.0  # how long a failed batch counts
# The same, if no batch of its dataset has been made since: its job may have ended of it.
FAILED_LAST_S: Final = 60.0
# Within this time clients have sent the two pings that show how long they wait.
UNHEARD_S: Final = 2.4
SILENT_CLIENT_S: Final = 2.0  # clients ping every second
# A worker that could run and uses less of a CPU lacks CPU time: others use it, or a quota.
LOOPING_SHARE: Final = 0.5

_MENDS: Final = {
    "bad-sample": "find all damaged samples with `feeder verify`, and pack the dataset again",
    "unreadable": "check its folder with `feeder verify`",
    "stalled-storage": "check the disk or file system that its folder is on",
    "store": "",  # its line says what to do
}


def node_down(facts: Facts, _part: float) -> Finding:
    """A node process sends no heartbeats, or is being ended or restarted."""
    nodes = facts.report.nodes
    down = [node for node in nodes if node.state in ("silent", "hung", "restarting")]
    if not down:
        return None
    node = down[0]
    return (
        f"node process {node.number}{and_more(down)} is {node.state}, "
        f"{plural(node.restarts, 'restart')} so far, {len(nodes) - len(down)} of {len(nodes)} "
        "serve; its last messages are in the daemon's log"
    )


def draining(facts: Facts, _part: float) -> Finding:
    """The daemon is ending."""
    is_draining = any(node.state == "draining" for node in facts.report.nodes)
    return "the daemon finishes requested batches and ends" if is_draining else None


def stalled_storage(facts: Facts, _part: float) -> Finding:
    """Reads of a dataset do not return; or most workers sleep for long: of all that they wait for,
    only storage takes so long."""
    names = sorted({name for node in facts.records for name in node.stalled_datasets})
    if names:
        return (
            f"reads of dataset {', '.join(names[:3])} do not return, its batches are held up; "
            "check the disk or file system that its folder is on"
        )
    silent = [worker for _, worker in facts.workers_by_silence if _is_silent(worker)]
    waiting_s = [w.silent_s for w in silent if w.kernel_state in ("sleeps", "storage")]
    if len(waiting_s) < 2 or 2 * len(waiting_s) < facts.workers:
        return None
    return (
        f"{len(waiting_s)} of {facts.workers} workers have waited for up to {max(waiting_s):.0f} "
        "s, as for reads that do not return; check the disk or file system of the datasets"
    )


def silent_worker(facts: Facts, _part: float) -> Finding:
    """A worker makes no progress, or was just replaced for that.

    One that waits for slow storage is silent for some seconds, too: only the daemon's decision to
    replace it, or a longer silence, tells them apart.
    """
    for node, worker in facts.workers_by_silence:
        if _is_silent(worker):
            state = f", {STATE_WORDS[worker.kernel_state]}" if worker.kernel_state else ""
            return (
                f"worker {worker.number} (pid {worker.pid}{state}) of node process {node.number} "
                f"has made no progress for {worker.silent_s:.1f} s; it is replaced at its chunk's "
                "deadline, the log says what it was doing"
            )
    killed = sum(node.workers_killed for node in facts.nodes)
    if not killed:
        return None
    were = "was" if killed == 1 else "were"
    return (
        f"{plural(killed, 'worker')} made no progress and {were} replaced in the last "
        f"{facts.seconds:.0f} s; the log says which, and what it was doing"
    )


def _is_silent(worker: WorkerInterval) -> bool:
    """Whether it is silent for a reason of its own: not slow storage, not a lack of CPU time."""
    if worker.state != "silent":
        return False
    if worker.kernel_state in ("stopped", "traced"):
        return True
    is_starved = worker.kernel_state == "runs" and worker.cpu_share < LOOPING_SHARE
    return worker.silent_s >= LONG_SILENCE_S and not is_starved


def failing_batches(facts: Facts, _part: float) -> Finding:
    """Batches of a dataset cannot be made."""
    failing = [
        failure
        for node in facts.records
        for failure in node.failures
        if failure.ago_s < (FAILED_LAST_S if failure.is_last else FAILED_S)
    ]
    if not failing:
        return None
    last = min(failing, key=lambda failure: failure.ago_s)
    if last.reason == "dataset":
        return last.message
    mend = _MENDS.get(last.reason, "the daemon's log has each failure")
    message = f"{last.message[:200]}; {mend}" if mend else last.message
    failed = sum(failure.batches for failure in failing if failure.dataset == last.dataset)
    return (
        f"{plural(failed, 'batch')} of dataset {last.dataset} could not be made, the last one "
        f"{last.ago_s:.0f} s ago ({last.reason}): {message}"
    )


def silent_client(facts: Facts, _part: float) -> Finding:
    """A client with a session sends nothing, not even its pings."""
    clients = [client for node in facts.records for client in node.clients]
    silent = [client for client in clients if client.silent_s >= SILENT_CLIENT_S]
    if not silent:
        return None
    longest = max(silent, key=lambda client: client.silent_s)
    more = and_more({(client.account, client.name) for client in silent})
    where = "its process" if longest.is_lent else "its process, or the network between,"
    return (
        f"nothing has come from {name_client(longest)}{more} for {longest.silent_s:.1f} s, not "
        f"even pings, {longest.wanted} of its {longest.window} batches are wanted or not released; "
        f"{where} has stopped or hangs"
    )


def starting(facts: Facts, _part: float) -> Finding:
    """There is nothing to judge yet."""
    count = sum(node.state == "starting" for node in facts.report.nodes)
    if count:
        return f"{count} node {'process is' if count == 1 else 'processes are'} not ready yet"
    is_unheard = bool(facts.node_clients) and facts.wait_share is None
    # No verdict from one sample: without a second one, the interval has no time.
    if facts.longer.seconds < (UNHEARD_S if is_unheard else 1.0):
        return "rates are known in a few seconds"
    return None
