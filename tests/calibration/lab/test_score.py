"""Are predictions scored as documented? Oracles: rows made by the simulator, and the closed form with its own result as measurement."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from calibration.clusters.evaluate import predict
from calibration.lab.plan import WORKLOADS
from calibration.lab.score import COMMITTED_ROWS, groups, informed_closed_form, score, score_document
from calibration.questions import Folders, question
from calibration.run_columns import COLUMNS
from calibration.run_records import read_records
from sim.spec.yaml import SpecError


def simulated(folder: Path) -> Path:
    """Committed rows of two models on one and two hosts, with the simulator's own step times in place of the measured ones."""
    path = folder / "own.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for record in read_records(COMMITTED_ROWS).records:
            if record.batch_per_gpu == 8 and record.workload in ("lab-vgg", "lab-transformer") and (record.nodes or 1) <= 2:
                step = predict(question(record, Folders(None, WORKLOADS))).step
                writer.writerow(
                    {"source": "lab", "hardware": record.hardware, "workload": record.workload, "input": record.input,
                     "nodes": record.nodes, "gpus_per_node": 1, "batch_per_gpu": 8,
                     "set": record.overrides, "step_time_s": step, "role": record.role}
                )  # fmt: skip
    return path


def test_the_simulator_foresees_itself(tmp_path: Path) -> None:
    scores = score(simulated(tmp_path))
    rows = score_document(scores)["rows"]
    assert rows[-1]["group"] == "all" and rows[-1]["points"] == len(scores.scored_rows) >= 8
    assert rows[-1]["p90"] < 0.005
    assert {row["group"] for row in rows} >= {"Mbps 1000", "model lab-transformer", "ms one way 5"}
    assert sum(row["points"] for row in rows if row["group"].startswith("Mbps")) == len(
        [row for row in scores.scored_rows if row.question.hardware.fabric.latency == 0]
    )


def test_the_closed_form_is_told_what_it_needs(tmp_path: Path) -> None:
    """With the share of the line that explains a row it says that row's step; the group 'all' holds every row once."""
    scores = score(simulated(tmp_path))
    (fitted,) = scores.clusters[0].network_rows
    assert informed_closed_form(fitted, [fitted]) == pytest.approx(fitted.question.step_time, rel=1e-6)
    assert len(groups(scores.scored_rows)["all"]) == len(scores.scored_rows)


def test_a_table_of_other_machines_is_refused(tmp_path: Path) -> None:
    """It has nothing that the rules of the laboratory could be calibrated on."""
    path = tmp_path / "runs.csv"
    path.write_text("hardware,workload,input,nodes,batch_per_gpu,step_time_s,role\np3.16xlarge,resnet50,synthetic,1,64,0.2,prediction\n")
    with pytest.raises(SpecError, match="has no rows of role network on these machines; pass a table written by"):
        score(path)
