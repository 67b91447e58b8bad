"""What are the figures of many runs based on? The assumptions and warnings of their documents, each listed once, and the inputs read.

A document of several runs uses the same keys for this as the document of a single run: ``assumptions``, ``warnings``, ``seed``,
``version`` and ``inputs_sha256``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sim import __version__
from sim.report.verdict import assumptions, warnings
from sim.simulate import Run

JsonDocument = Mapping[str, Any]


def run_basis(run: Run, inputs: Mapping[str, str], noted: Sequence[str] = ()) -> dict[str, Any]:
    """Return the basis of the first job of *run*; *inputs* are the SHA-256 of each description, *noted* are additional warnings."""
    return {
        "assumptions": assumptions(run),
        "warnings": [*noted, *warnings(run)],
        "seed": run.seed,
        "version": __version__,
        "inputs_sha256": dict(inputs),
    }


def merged_basis(documents: Sequence[JsonDocument]) -> dict[str, Any]:
    """Return the basis of several runs from their *documents*; a line that holds for only some runs is prefixed with their machines.

    ``inputs_sha256`` has an entry for each machine.
    """
    several = len({document["workload"] for document in documents}) > 1
    machines = {machine_label(document) + (f", {document['workload']}" if several else ""): document for document in documents}
    prints = next(({**document["inputs_sha256"]} for document in documents), {})
    prints.pop("hardware", None)
    return {
        "assumptions": merged_by_machine({name: document["assumptions"] for name, document in machines.items()}),
        "warnings": merged_by_machine({name: document["warnings"] for name, document in machines.items()}),
        "seed": documents[0]["seed"] if documents else 0,
        "version": __version__,
        "inputs_sha256": prints | {name: document["inputs_sha256"]["hardware"] for name, document in machines.items()},
    }


def machine_label(document: JsonDocument) -> str:
    """Return the machine's name in a run's *document*, with the number of nodes if there are several."""
    nodes = document["nodes"]
    return str(document["hardware"]) if nodes == 1 else f"{document['hardware']}, {nodes:,} nodes"


def merged_by_machine(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each distinct line of *texts* (lines by machine) once: first those of all machines, then others prefixed with the names.

    In a line of several machines, 'each' replaces the machine's name. A line of one machine needs no prefix if it begins with the name.
    """
    names_of: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    for name, lines in texts.items():
        for line in lines:
            merged = _replace_machine(line, name.partition(",")[0]) if len(texts) > 1 else line
            names_of.setdefault(merged, []).append(name)
            written.setdefault(merged, line)
    prefixed = [(_prefix(names, list(texts)), written[line] if len(names) == 1 else line) for line, names in names_of.items()]
    return [
        line if line.startswith(f"{prefix.partition(',')[0].removesuffix(': ')} ") else prefix + line
        for prefix, line in sorted(prefixed, key=lambda pair: bool(pair[0]))
    ]


def _replace_machine(line: str, machine: str) -> str:
    """Return *line* with *machine* replaced by 'each', except where it is part of a longer word."""
    return re.sub(rf"(?<![\w.-]){re.escape(machine)}(?![\w-])", "each", line)


def _prefix(names: Sequence[str], machines: Sequence[str]) -> str:
    """Return the prefix for a line that holds for *names*: empty if that is all *machines*, 'all but ...' if few are missing."""
    missing = [name for name in machines if name not in names]
    if not missing:
        return ""
    return f"all but {'; '.join(missing)}: " if 3 * len(missing) < len(names) else f"{'; '.join(names)}: "
