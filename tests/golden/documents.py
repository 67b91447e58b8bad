"""What did the program say before a change? ``python -m tests.golden.documents`` (``make golden``) writes the documents anew.

A golden document is the JSON document of a run without prose, fingerprints, version, inputs and expected errors, numbers to 12 digits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.report.document import run_document
from sim.report.layouts.layout import layout_document
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.scenario import Scenario, answer, has_layout
from tests.golden.scenarios import said, scenarios

FOLDER = Path(__file__).with_name("documents")
LEFT_OUT = {"inputs", "inputs_sha256", "version", "expected_error", "assumptions", "warnings", "source", "date"}


def golden(scenario: Scenario) -> Any:
    """Return the figures that a run of *scenario* says, below the scenario itself. A refusal is a document as well."""
    try:
        figures = _figures(_document(scenario))
    except SpecError:
        figures = {"refused": True}
    return {"scenario": said(scenario), "document": figures}


def _document(scenario: Scenario) -> dict[str, Any]:
    if has_layout(scenario):
        return layout_document(layout_answer(scenario))
    answered = answer(scenario)
    return run_document(answered.run, answered.inputs, market=answered.market)


def write() -> None:
    """Write all documents and remove those of scenarios that are gone."""
    FOLDER.mkdir(exist_ok=True)
    wanted = {f"{name}.json": scenario for name, scenario in scenarios().items()}
    for path in FOLDER.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, scenario in wanted.items():
        (FOLDER / name).write_text(json.dumps(golden(scenario), indent=1) + "\n", encoding="utf-8")


def differences(before: Any, now: Any, relative: float = 1e-9) -> list[str]:
    """Return where two documents differ, a line each. Numbers differ from *relative* on, so that another libm changes nothing."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    lines = [f"{key}: gone, was {old[key]}" for key in old if key not in new]
    lines += [f"{key}: new, {new[key]}" for key in new if key not in old]
    return lines + [f"{key}: {old[key]} -> {new[key]}" for key in old if key in new and not _same(old[key], new[key], relative)]


def _same(before: Any, now: Any, relative: float) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, now))
    return abs(before - now) <= relative * max(abs(before), abs(now)) if numbers else before == now


def _leaves(document: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from _leaves(value, f"{at}.{key}" if at else key)
    elif isinstance(document, list | tuple) and document:
        for index, value in enumerate(document):
            yield from _leaves(value, f"{at}[{index}]")
    else:
        yield at, document


def _figures(value: Any) -> Any:
    """Return *value* with numbers to 12 digits and without prose, which is every text of more than a word.

    What is left of differences of equal numbers is none: 3.12 and later add floats more exactly.
    """
    if isinstance(value, dict):
        return {key: _figures(kept) for key, kept in value.items() if key not in LEFT_OUT and not _is_prose(kept)}
    if isinstance(value, list | tuple):
        return [_figures(kept) for kept in value if not _is_prose(kept)]
    return (float(f"{value:.12g}") if abs(value) > 1e-14 else 0.0) if isinstance(value, float) else value


def _is_prose(value: Any) -> bool:
    return isinstance(value, str) and len(value.split()) > 1


if __name__ == "__main__":
    write()
