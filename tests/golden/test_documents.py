"""Do runs say what they said before? Oracle: the documents of earlier runs; whoever means to move a figure writes them anew."""

from __future__ import annotations

import json

from tests.golden.documents import FOLDER, differences, golden
from tests.golden.scenarios import scenarios


def test_runs_say_what_they_said() -> None:
    wanted, problems = scenarios(), []
    for name, scenario in wanted.items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            problems.append(f"{name}: no document of {scenario}")
            continue
        problems += [f"{name}: {line}" for line in differences(json.loads(path.read_text(encoding="utf-8")), golden(scenario))[:5]]
    problems += [f"{path.stem}: no scenario" for path in FOLDER.glob("*.json") if path.stem not in wanted]
    assert not problems, "\n".join(["if the figures are meant to move, run `make golden` and read the diff", *problems])


def test_a_figure_that_moves_is_told() -> None:
    before = {"step": 1.0, "stalls": {"prep": 0.5, "fetch": 0.0}, "stages": [1, 2], "cause": "nic"}
    assert differences(before, json.loads(json.dumps(before))) == []
    assert differences(before, before | {"step": 1.0 + 1e-12}) == []
    now = {"step": 1.00001, "stalls": {"prep": 0.5, "launch": 0.1}, "stages": [1, 2, 3], "cause": "pcie"}
    assert differences(before, now) == [
        "stalls.fetch: gone, was 0.0", "stalls.launch: new, 0.1", "stages[2]: new, 3", "step: 1.0 -> 1.00001", "cause: nic -> pcie",
    ]  # fmt: skip


def test_hardly_any_scenario_is_refused() -> None:
    documents = [json.loads(path.read_text(encoding="utf-8"))["document"] for path in FOLDER.glob("*.json")]
    assert sum("refused" in document for document in documents) <= 1
    assert all(document["step_time_s"] > 0 for document in documents if "step_time_s" in document)
