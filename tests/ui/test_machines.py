"""Does the Pareto front appear first, and is it complete when the page says so? Against the table of all machines."""

from __future__ import annotations

import re
from typing import Any

from sim.spec.memo import caching
from sim.study.compare import front
from sim.study.least_epoch import LeastEpoch
from sim.ui import machines
from sim.ui.choice import choice_of
from sim.ui.machines import in_order, machine_views

NAMES = [
    "p4d.24xlarge", "p3.16xlarge", "p3dn.24xlarge", "g4dn.metal", "g5.48xlarge", "gpu_8x_a100", "gpu_8x_v100", "a2-highgpu-8g",
    "n3-rtx-a6000x8", "n3-a100x8-nvlink", "hgx-h100",
]  # fmt: skip
"""Machines of several providers; the last one has no price."""


def starred(view: dict[str, Any]) -> list[str]:
    """Return the machines of the front in the table of *view*."""
    return re.findall(r">([\w.-]+)<span class=\"flag\" title=\"Pareto-optimal\"", view["html"])


def test_the_front_is_complete_before_the_table(monkeypatch: Any) -> None:
    """Oracle: the front of the last view, which has all machines."""
    monkeypatch.setattr(machines, "_BETWEEN", 1e9)
    for values in ({"workload": "resnet50"}, {"workload": "resnet50", "epochs": "90"}, {"workload": "llama-3.2-1b", "shard": "parameters"}):
        chosen = choice_of(values.items())
        with caching(repr(values)):
            views = [view for view in machine_views(chosen, NAMES) if view]
            again = [view for view in machine_views(chosen, NAMES) if view]
        assert views[0]["done"] == 1, "the machine that is chosen, at once"
        first = next(view for view in views if view["complete"])
        assert first["done"] < first["of"] == views[-1]["done"] == len(NAMES)
        assert starred(first) == starred(views[-1]) != []
        assert [view["html"] for view in again] == [view["html"] for view in views], "a slider that returns"


def test_a_job_of_some_hours_has_no_front_before_the_end() -> None:
    views = [view for view in machine_views(choice_of([("workload", "alexnet"), ("hours", "5")]), NAMES[:3]) if view]
    assert [view["complete"] for view in views if view["done"] < view["of"]] == [False] * (len(views) - 1)


def test_machines_that_may_be_on_the_front_come_first() -> None:
    bounds = {
        "slow": LeastEpoch(8.0, 8.0), "fast": LeastEpoch(1.0, 5.0), "cheap": LeastEpoch(5.0, 1.0),
        "middle": LeastEpoch(2.0, 2.0), "free": LeastEpoch(0.5, None), "small": None,
    }  # fmt: skip
    assert in_order(bounds) == ["fast", "middle", "cheap", "slow", "free", "small"]
    assert front([(1.0, 5.0), (8.0, 8.0)]) == [True, False]
