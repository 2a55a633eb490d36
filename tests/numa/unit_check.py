"""Runs in the guest after systemd started feeder.service: is it up, sandboxed, placed, logged?"""

import os
import re
import subprocess
import time
from pathlib import Path

from feeder.host.topology import read_topology
from feeder.plan.recipe import Recipe
from tests.numa.daemon import Report, children, is_placed, own_placement
from tests.support.raw_client import RawClient

ENDPOINTS = (
    "tcp://127.0.0.1:5555",
    "tcp://127.0.0.1:5556",
    "ipc:///run/feeder/feeder",
    "ipc:///run/feeder/feeder.1",
)
JOURNAL_DEADLINE_S = 60.0


def systemctl(*arguments: str) -> str:
    command = ["/bin/systemctl", *arguments, "feeder.service"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> None:
    report = Report()
    state = systemctl("show", "-P", "ActiveState")
    report.check(state == "active", "systemd has started the service", state)
    if state != "active":
        report.log(systemctl("status", "--no-pager", "--full"))
        report.finish()
    restarts = systemctl("show", "-P", "NRestarts")
    report.check(restarts == "0", "without a restart", f"{restarts} restarts")
    supervisor = int(systemctl("show", "-P", "MainPID"))
    check_sandbox(report, supervisor)
    check_nodes(report, supervisor)
    for endpoint in ENDPOINTS:
        with RawClient(endpoint) as client:
            client.hello(Recipe.for_split("train", batch_size=8), dataset="set")
            client.want((0, 0))
            images = int((client.take((0, 0)).sample_ids >= 0).sum())
            report.check(images == 8, f"serves at {endpoint}", f"{images} images")
    mode = os.stat("/run/feeder/feeder").st_mode & 0o777
    report.check(mode == 0o660, "its ipc socket is open to its group only", f"{mode:o}")
    check_journal(report, supervisor)
    processes = [supervisor, *(node.pid for node in children(supervisor, "feeder.node"))]
    systemctl("stop")
    result = systemctl("show", "-P", "Result"), systemctl("show", "-P", "ExecMainStatus")
    report.check(result == ("success", "0"), "systemctl stop ends it cleanly", result)
    remaining = [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    report.check(not remaining, "no process remains", remaining)
    report.finish()


def journal(priority: str) -> list[str]:
    """Return the messages of the unit in the journal, from a priority up."""
    command = ["/bin/journalctl", "--unit=feeder", "--output=cat", f"--priority={priority}"]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if line.startswith(("feeder:", "<"))]  # not systemd's own


def check_journal(report: Report, supervisor: int) -> None:
    """Check that the journal knows which lines are warnings, by killing a worker."""
    children(children(supervisor, "feeder.node")[0], "feeder.worker")[0].kill()
    until_s = time.monotonic() + JOURNAL_DEADLINE_S
    while not (warnings := [line for line in journal("warning") if "replaced" in line]):
        if time.monotonic() > until_s:
            break
        time.sleep(0.5)
    report.check(len(warnings) == 1, "journalctl -p warning finds a lost worker", warnings)
    lines = journal("info")
    ready = [line for line in lines if line.startswith("feeder: ready, ")]
    report.check(len(ready) == 1, "the journal has the ready line, without a mark", lines[-3:])
    marked = [line for line in lines if line.startswith("<")]
    report.check(not marked, "no mark is part of a message", marked)
    listed = journal("warning")
    report.check(not set(ready) & set(listed), "the ready line is no warning", listed)


def check_sandbox(report: Report, supervisor: int) -> None:
    """Check in /proc that the sandbox is in force."""
    status = dict(
        re.findall(r"^(\w+):\t(.*)$", Path(f"/proc/{supervisor}/status").read_text(), re.M)
    )
    user = int(status["Uid"].split()[0])
    report.check(user >= 61184, "runs as a dynamic user", user)
    seen = {name: status[name] for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
    good = int(seen["CapEff"], 16) == int(seen["CapBnd"], 16) == 0
    good = good and (seen["NoNewPrivs"], seen["Seccomp"]) == ("1", "2")
    report.check(good, "without capabilities, its system calls filtered", seen)


def check_nodes(report: Report, supervisor: int) -> None:
    """Check that every process could pin itself and bind its memory inside the sandbox."""
    nodes = children(supervisor, "feeder.node")
    report.check(len(nodes) == 2, "one node process for each NUMA node", nodes)
    for numa_node, node in zip(read_topology(), nodes, strict=True):
        for pid in (each.pid for each in (node, *children(node, "feeder.worker"))):
            good, found = is_placed(pid, own_placement(numa_node, 2))
            bound = f" bind:{numa_node.id} " in Path(f"/proc/{pid}/numa_maps").read_text()
            claim = f"process {pid} is bound to node {numa_node.id} and runs there"
            report.check(good and bound, claim, found)


if __name__ == "__main__":
    main()
