"""How fast is the program here? Runs the benches, prints their medians, and writes them into docs/trust/speed.md between two marks.

A bench says in ``extra_info`` what it measures: *label*; *count* and *unit* where a rate tells more than a time; *value* where it
measured something other than the time of this process; *aim* where there is a figure to reach, or a peer's. Times are CPU times: what
other programs take of the machine does not count. ``python -m tests.bench.table tests/bench/test_goodput.py`` renews the rows of one file.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.units import show

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "trust" / "speed.md"
TABLE = re.compile(r"(?<=<!-- bench -->\n).*?(?=<!-- end bench -->)", re.DOTALL)


def measured(files: Sequence[str] = ("tests/bench",)) -> list[Mapping[str, Any]]:
    """Run the benches of *files*, by default all, and return what pytest-benchmark says of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [
            sys.executable,
            "-m",
            "pytest",
            *files,
            "--benchmark-only",
            "--benchmark-timer=time.process_time",
            "-p",
            "no:cacheprovider",
        ]
        subprocess.run([*command, f"--benchmark-json={report}"], cwd=ROOT, check=True)
        return list(json.loads(report.read_text(encoding="utf-8"))["benchmarks"])


def figure(bench: Mapping[str, Any]) -> str:
    """Return the median of one bench as its reader wants it: a time, a rate, or what it measured instead."""
    said, median = bench["extra_info"], bench["stats"]["median"]
    if "value" in said:
        return str(said["value"])
    if "count" in said:
        rate = float(f"{said['count'] / median:.2g}")
        return f"{rate:,.0f} {said['unit']}"
    return show(float(f"{median:.2g}"), "time")


def table(benches: list[Mapping[str, Any]], machine: str) -> str:
    """Return the benches as a table in Markdown."""
    lines = [f"| median CPU time, {machine} | reached | aim, or a peer's |", "|---|---|---|"]
    return "\n".join([*lines, *map(row, benches)]) + "\n"


def row(bench: Mapping[str, Any]) -> str:
    """Return the row of one bench."""
    return f"| {bench['extra_info']['label']} | {figure(bench)} | {bench['extra_info'].get('aim', '')} |"


def renewed(before: str, benches: list[Mapping[str, Any]]) -> str:
    """Return the table *before* with the rows of *benches* in place of those with the same label; rows that are new come last."""
    rows = {line.split(" | ")[0]: line for line in before.splitlines()}
    rows |= {line.split(" | ")[0]: line for line in map(row, benches)}
    return "\n".join(rows.values()) + "\n"


def this_machine() -> str:
    """Return the machine in a few words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    files = sys.argv[1:]
    benches = measured(files) if files else measured()
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda old: renewed(old[0], benches) if files else table(benches, this_machine()), page), encoding="utf-8")
