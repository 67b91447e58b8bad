"""Which files does the page offer for download? JSON, CSV, descriptions in YAML, a trace and the report of the run that is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import yaml

from sim.mesh import LayoutRun
from sim.report.files import MADE_BY
from sim.report.trace.layout_trace import write_layout_trace
from sim.report.trace.run_trace import write_trace
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.scenario import loaded_hardware, sorted_overrides
from sim.terminal import json_text, program
from sim.ui.choice import Choice, command_of, quote_words, scenario_of
from sim.ui.view import jobs_of, outcome_of


@dataclass(frozen=True)
class File:
    """A file to download: its *name*, media *type* and *content*."""

    name: str
    type: str
    content: bytes


class PageDownload(NamedTuple):
    """A file that the page offers: the text of its link, its media type, and the function that makes it."""

    title: str
    type: str
    make: Callable[[Choice], str | bytes]


def file_of(choice: Choice, name: str) -> File:
    """Return the file *name* of *choice*. Raise SpecError if the choice cannot run, or for an unknown name."""
    if name not in FILES:
        raise SpecError(f"{name}: no such file; write one of {', '.join(FILES)}")
    kind = FILES[name]
    token = MADE_BY.set(f"{program()} {quote_words(command_of(choice))}")
    try:
        content = kind.make(choice)
    finally:
        MADE_BY.reset(token)
    return File(name, kind.type, content.encode() if isinstance(content, str) else content)


def _json(choice: Choice) -> str:
    return json_text(outcome_of(scenario_of(choice)).document)


def _csv(choice: Choice) -> str:
    return outcome_of(scenario_of(choice)).csv


def _report(choice: Choice) -> str:
    return outcome_of(scenario_of(choice)).report


def _trace(choice: Choice) -> bytes:
    run = outcome_of(scenario_of(choice)).run
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        _ = write_layout_trace(run, path) if isinstance(run, LayoutRun) else write_trace(run, path)
        return path.read_bytes()


def _hardware(choice: Choice) -> str:
    return _yaml_text(loaded_hardware(scenario_of(choice)).document.value, choice)


def _workload(choice: Choice) -> str:
    """Return the workload as set by the controls; a batch of ``max`` is replaced by the number that fits."""
    scenario = scenario_of(choice)
    if scenario.batch == "max":
        scenario = replace(scenario, batch=jobs_of(outcome_of(scenario).document)[0]["batch_per_gpu"])
    _, overrides = sorted_overrides(scenario)
    return _yaml_text(load_workload(scenario.workload, overrides).document.value, choice)


class _Plain(yaml.SafeDumper):
    """Writes every value in full, without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml_text(value: object, choice: Choice) -> str:
    head = (
        f"# As set on the page of: {program()} {quote_words(command_of(choice))}\n# Run with: {program()} run hardware.yaml workload.yaml\n"
    )
    return head + str(yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120))


FILES: Final = {
    "run.json": PageDownload("JSON", "application/json", _json),
    "run.csv": PageDownload("CSV", "text/csv", _csv),
    "hardware.yaml": PageDownload("Hardware (YAML)", "application/yaml", _hardware),
    "workload.yaml": PageDownload("Workload (YAML)", "application/yaml", _workload),
    "trace.json.gz": PageDownload("Trace", "application/gzip", _trace),
    "report.html": PageDownload("Report (HTML)", "text/html", _report),
}
"""Files by name, in the order of their links."""
