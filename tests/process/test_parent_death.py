"""Orphans are reaped by the process that adopts them; its own children are left to it."""

import subprocess
import sys

from tests.support.sources import REPOSITORY

_ADOPTS = """
import os, subprocess, sys
from feeder.process.child import adopt_orphans, reap_orphans

adopt_orphans()
# Spawned, not a Popen: that would reap a child which ends before its parent does.
nested = "import os; print(os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 0'], os.environ))"
parent = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE)
own = subprocess.Popen(["sh", "-c", "exit 7"])
orphan = int(parent.communicate()[0])
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)  # a child now, and ended
while os.path.exists(f"/proc/{orphan}"):
    reap_orphans({own.pid})
    if own.returncode is None and os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT):
        own.wait()  # as the code that started it does
reap_orphans({own.pid})
sys.exit(own.wait())
"""


def test_orphans_are_reaped_and_the_status_of_a_child_is_left_to_its_owner() -> None:
    done = subprocess.run([sys.executable, "-c", _ADOPTS], cwd=REPOSITORY, timeout=60)
    assert done.returncode == 7
