"""On what do the figures of many runs rest? What their documents assume and warn of, said once, and what was read.

A document of several runs has the same keys for that as a run's own: ``assumptions``, ``warnings``, ``seed``, ``version`` and
``inputs_sha256``.
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
    """Return on what the first job of *run* rests; *inputs* are the SHA-256 of each description, *noted* are further warnings."""
    return {
        "assumptions": assumptions(run),
        "warnings": [*noted, *warnings(run)],
        "seed": run.seed,
        "version": __version__,
        "inputs_sha256": dict(inputs),
    }


def basis_of(documents: Sequence[JsonDocument]) -> dict[str, Any]:
    """Return on what runs rest, by their *documents*: what all assume once, what some do with their names.

    ``inputs_sha256`` has an entry for each machine.
    """
    several = len({document["workload"] for document in documents}) > 1
    machines = {named(document) + (f", {document['workload']}" if several else ""): document for document in documents}
    prints = next(({**document["inputs_sha256"]} for document in documents), {})
    prints.pop("hardware", None)
    return {
        "assumptions": said_once({name: document["assumptions"] for name, document in machines.items()}),
        "warnings": said_once({name: document["warnings"] for name, document in machines.items()}),
        "seed": documents[0]["seed"] if documents else 0,
        "version": __version__,
        "inputs_sha256": prints | {name: document["inputs_sha256"]["hardware"] for name, document in machines.items()},
    }


def named(document: JsonDocument) -> str:
    """Return the machine of a run's *document*, and how many of it."""
    nodes = document["nodes"]
    return str(document["hardware"]) if nodes == 1 else f"{document['hardware']}, {nodes} nodes"


def said_once(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the *texts* of machines, each once: what all say first and as it is, what some say with their names.

    A line that names its machine says 'each' of several.
    """
    said: dict[str, list[str]] = {}
    for name, lines in texts.items():
        for line in lines:
            said.setdefault(_of_each(line, name.partition(",")[0]) if len(texts) > 1 else line, []).append(name)
    prefixed = [(_prefix(names, list(texts)), line) for line, names in said.items()]
    return [prefix + line for prefix, line in sorted(prefixed, key=lambda said: bool(said[0]))]


def _of_each(line: str, machine: str) -> str:
    """Return *line* with 'each' in place of *machine*, which may be part of another word."""
    return re.sub(rf"(?<![\w.-]){re.escape(machine)}(?![\w-])", "each", line)


def _prefix(names: Sequence[str], every: Sequence[str]) -> str:
    """Return whom a line is said of: nothing for all, whoever is left out where those are few."""
    missing = [name for name in every if name not in names]
    if not missing:
        return ""
    return f"all but {'; '.join(missing)}: " if 3 * len(missing) < len(names) else f"{'; '.join(names)}: "
