"""The Grafana dashboard against Grafana's own types, by the TypeScript compiler.

`make test-ui` installs both from npm into .ui/node_modules. Enumerations of words become unions of
their words, because TypeScript does not take text for a member of an enumeration.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.sources import REPOSITORY

MODULES = REPOSITORY / ".ui" / "node_modules"
TYPES = MODULES / "@grafana/schema/dist/types"
DASHBOARD = REPOSITORY / "docs/monitoring/feeder.json"
PANELS = {"timeseries": "timeseries", "stat": "stat", "state-timeline": "statetimeline"}

_ENUM = re.compile(r"(?:export )?declare enum (\w+) \{(.*?)\n?\}", re.DOTALL)
_MEMBER = re.compile(r"""\w+ = ("[^"]*"|'[^']*'|-?\d+)""")


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's types below ``types``."""
    folder = tmp_path_factory.mktemp("grafana")
    shutil.copytree(TYPES, folder / "types")
    for path in (folder / "types").rglob("*.d.ts"):
        text = path.read_text()
        text = re.sub(r"'@grafana/schema'", f"'{folder}/types/common/common.gen'", text)
        text = _ENUM.sub(_union, text)
        path.write_text(text)
    return folder


def _union(match: re.Match[str]) -> str:
    return f"export type {match[1]} = {' | '.join(_MEMBER.findall(match[2])) or 'never'};"


def compile_dashboard(folder: Path, dashboard: dict[str, Any]) -> str:
    lines = ["import type { Dashboard } from './types/raw/dashboard/x/types.gen';"]
    for kind, room in PANELS.items():
        path = f"./types/raw/composable/{room}/panelcfg/x/types.gen"
        lines.append(f"import type * as {PANELS[kind]} from '{path}';")
    lines.append(f"export const dashboard: Dashboard = {json.dumps(dashboard)};")
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        room, ident = PANELS[panel["type"]], panel["id"]
        lines.append(f"export const o{ident}: {room}.Options = {json.dumps(panel['options'])};")
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom:
            lines.append(f"export const c{ident}: {room}.FieldConfig = {json.dumps(custom)};")
    (folder / "check.ts").write_text("\n".join(lines))
    options = {"noEmit": True, "strict": True, "skipLibCheck": True, "types": []}
    options |= {"module": "commonjs", "moduleResolution": "node", "target": "es2020"}
    config = {"compilerOptions": options, "files": ["check.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        ["node", MODULES / "typescript/bin/tsc", "--project", "tsconfig.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_grafana_s_types_accept_the_dashboard(types: Path) -> None:
    assert compile_dashboard(types, json.loads(DASHBOARD.read_text())) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"drawStyle": "line"', '"drawStyle": "lines"'),
        ('"fieldConfig": {', '"fieldConfigs": {}, "fieldConfig": {'),
    ],
    ids=["word", "field"],
)
def test_a_mistake_in_the_dashboard_is_found(types: Path, old: str, new: str) -> None:
    text = DASHBOARD.read_text()
    assert old in text
    errors = compile_dashboard(types, json.loads(text.replace(old, new, 1)))
    assert re.match(r"check\.ts\(.*error TS2", errors), errors
