"""How accurate is the simulator on the committed measurements? Write the table in docs/trust and the expected errors that runs report.

``make validated`` runs it. The errors that runs report are those of predictions from descriptions only, because that is how a run predicts.
The table also shows the gain from calibration.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from calibration import FOLDER, RECORDS
from calibration.clusters.cluster_fit import SHARED_CONSTANTS
from calibration.questions import Folders
from calibration.run_records import COMMITTED_RUNS
from calibration.validate.aims import aims_table
from calibration.validate.carry_over import KINDS, constants_without, score_left_out
from calibration.validate.scores import ScoredRow
from calibration.validate.validation import Validation, validate
from calibration.validate.validation_report import group_table, validation_table
from sim.report.expected_error import family_of, groups_of
from sim.report.validated import SUMMARY
from sim.spec.whole_file import write_file

ROOT: Final = FOLDER.parent
BLOCK: Final = re.compile(r"<!-- validated -->\n.*?<!-- end -->", re.DOTALL)
UNEQUAL_RUNS: Final = RECORDS / "unequal.csv"
"""Runs with inputs of unequal size, or bound by their hosts; they are scored separately."""
DERIVED: Final = {
    "compute.usual loss": "usual_slowdown",
    "compute.job": "job_width",
    "exchange.form": "exchange_deviation",
    "compute.unseen": "unseen_job_deviation",
    "interval.widening": "widening",
}
"""Priors that runs of all sources determine together, with their fields of `SharedConstants`."""
LEAST_POINTS: Final = 5
"""Least number of runs of a group for which percentiles are reported."""


def summary(validation: Validation) -> dict[str, Any]:
    """Return the errors of predictions from descriptions only, by group of runs."""
    groups: dict[str, list[ScoredRow]] = defaultdict(list)
    for row in validation.scored_rows:
        for name in groups_of(row.question.hardware.groups[0].node, row.question.job):
            groups[name].append(row)
    return {"schema": 1, "groups": {name: _figures(rows) for name, rows in sorted(groups.items()) if len(rows) >= LEAST_POINTS}}


def _figures(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    import numpy as np

    ratios = np.array([row.question.step_time / row.predictions["as_described"] for row in rows])
    errors = np.abs(1.0 / ratios - 1.0)
    rounded = {"median": np.median(errors), "p90": np.quantile(errors, 0.9)}
    rounded |= {"low": np.quantile(ratios, 0.025), "high": np.quantile(ratios, 0.975)}
    return {
        "points": len(rows),
        **{name: round(float(value), 3) for name, value in rounded.items()},
        "most_nodes": max(row.question.nodes for row in rows),
        "most_gpus": max(row.question.job.ranks for row in rows),
        "most_parameters": max(row.question.job.workload.model.parameters for row in rows),
        "shortest_step_s": float(f"{min(row.question.step_time for row in rows):.3g}"),
        "families": sorted({family_of(row.question.job.workload.model) for row in rows}),
        "sources": sorted({row.question.record.source for row in rows}),
    }


def validated_block(validation: Validation, unequal: Validation) -> str:
    """Return the block of the page: scores, scores of `UNEQUAL_RUNS`, the constants that the rows determine, and the aims."""
    parts = [
        validation_table(validation),
        group_table(unequal.scored_rows, "workload", "in unequal.csv alone"),
        derived_table(validation),
        aims_table(validation.scored_rows, validation.left_out),
    ]
    return "<!-- validated -->\n```\n" + "\n\n".join(parts) + "\n```\n<!-- end -->"


def derived_table(validation: Validation) -> str:
    """Return the constants of `calibration/clusters/priors.yaml` that all sources determine, and their values from *validation*."""
    again = constants_without(validation, "")
    lines = [f"{'constants that all sources determine':38} {'in use':>8}  {'derived again':>13}"]
    for name, field in DERIVED.items():
        lines.append(f"{name:38} {getattr(SHARED_CONSTANTS, field):8.3g}  {getattr(again, field):13.3g}")
    return "\n".join(lines)


def publish() -> None:
    """Validate the committed records, and write the summary and the block of the page."""
    validation = score_left_out(validate([COMMITTED_RUNS], Folders(), notify=print), Folders(), KINDS, notify=print)
    write_file(ROOT / SUMMARY, json.dumps(summary(validation), indent=1) + "\n")
    unequal = validate([UNEQUAL_RUNS], Folders(), notify=print)
    page = ROOT / "docs" / "trust" / "validation.md"
    text = page.read_text(encoding="utf-8")
    write_file(page, BLOCK.sub(lambda _: validated_block(validation, unequal), text))


if __name__ == "__main__":
    publish()
