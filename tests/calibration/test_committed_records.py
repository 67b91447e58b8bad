"""Can the committed measurements be asked? Oracles: their own schema, and the rules on what may calibrate."""

from __future__ import annotations

import math
import pkgutil
import re
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean

import pytest

from calibration import FOLDER, HARDWARE
from calibration.clusters.network_parameters import AS_DESCRIBED, places_used
from calibration.clusters.scatter import LEAST_NOISE
from calibration.questions import RunQuestion, question
from calibration.run_records import COMMITTED_RUNS, read_records
from calibration.validate.published import UNEQUAL_RUNS
from calibration.validate.splits import DISAGREEMENT
from sim.check import check_hardware, require
from sim.spec.hardware import Hardware
from sim.spec.library import load
from sim.spec.memo import caching_inside


@pytest.fixture(scope="module")
def rows() -> list[RunQuestion]:
    with caching_inside():
        return [question(record) for record in read_records(COMMITTED_RUNS).records]


@pytest.mark.parametrize("path", sorted(HARDWARE.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_cluster_passes_its_check(path: Path) -> None:
    loaded = load(Hardware, path)
    assert loaded.spec.name == path.stem
    require(check_hardware(loaded.spec, loaded.document))


def test_every_row_names_its_source_and_what_exists(rows: list[RunQuestion]) -> None:
    assert len(rows) > 500 and all(row.record.source for row in rows)
    assert all(row.step_time > 0 for row in rows)


def test_the_least_scatter_is_that_of_one_of_two_equal_runs(rows: list[RunQuestion]) -> None:
    """By hand: Sia measured the same calibrating runs on two DGX A100; what two runs differ by is sqrt(2) times what one scatters by."""
    runs: dict[object, dict[str, float]] = defaultdict(dict)
    for row in rows:
        one = row.record
        if one.hardware in ("sia-dgx", "sia-dgx-ext") and one.role != "prediction":
            what = one.workload, one.stack, one.placement, one.batch_per_gpu, one.gradient_accumulation_steps, one.precision
            runs[what].setdefault(one.hardware, row.step_time)
    apart = [math.log(both["sia-dgx"] / both["sia-dgx-ext"]) for both in runs.values() if len(both) == 2]
    undisputed = [each for each in apart if abs(each) <= math.log(1.0 + DISAGREEMENT)]
    assert len(undisputed) > 40 and len(undisputed) >= len(apart) - 1
    assert math.sqrt(mean(each**2 for each in undisputed) / 2) == pytest.approx(LEAST_NOISE, abs=5e-4)


def test_placements_that_calibrate_are_the_agreed_ones(rows: list[RunQuestion]) -> None:
    """petuum/adaptdl: placements 1, 2, 11 and 111; DLPerf and Lambda: one GPU computes, the second node or GPU is the network.

    Of one of Lambda's machines 8 GPUs calibrate as well, and are not scored: they tell what copies from socket to socket carry, which two
    GPUs of one socket cannot (`socket_copy_bandwidth` of the machines whose GPUs do not address each other).
    """
    count = 0
    for row in rows:
        counts = [len(part.gpus) for part in row.job.placement]
        fitted = row.record.role != "prediction"
        if row.record.source == "pollux":
            assert fitted == (counts in ([1], [2], [1, 1], [1, 1, 1]))
        if row.record.source == "lambda":
            between_sockets = row.record.hardware == "lambda-v1-a100-80gb-sxm" and row.job.ranks == 8
            count += between_sockets
            assert fitted == (row.job.ranks <= 2 or between_sockets)
        if row.record.source == "dlperf" and row.record.role == "network":
            assert row.nodes == 2
    assert count == 6


def test_bert_of_paddle_perf_runs_as_its_scripts_and_topology_say(rows: list[RunQuestion]) -> None:
    """By hand: run_benchmark.sh sums gradients of 67,584 sequences of all GPUs, Paddle's of that many on eight.

    nvidia-smi topo -m says NODE between the NIC and every GPU, farther than PXB, up to which NCCL uses GPUDirect: copies pass the host.
    """
    bert = [row for row in rows if row.record.source == "paddle-perf" and row.record.workload == "bert-base-seq128"]
    assert len(bert) == 30
    for row in bert:
        of_eight = row.samples * 8 // row.job.ranks
        assert (row.samples if row.record.stack.startswith("ngc-") else of_eight) == 67_584, row.record.where
        if row.nodes > 1:
            assert {"nic", "host_transport"} <= places_used(row, AS_DESCRIBED)


def test_no_run_is_both_fitted_and_predicted(rows: list[RunQuestion]) -> None:
    keys = Counter(
        (row.record.hardware, row.record.workload, row.record.software, row.record.overrides, row.record.placement, row.record.nodes,
         row.record.gpus_per_node, row.batch, row.workload.training.precision, row.record.role == "prediction")
        for row in rows
    )  # fmt: skip
    assert not [key for key in keys if (*key[:-1], not key[-1]) in keys]


def test_runs_scored_by_themselves_calibrate_by_the_agreed_placements_and_stand_in_no_other_file(rows: list[RunQuestion]) -> None:
    counted = {(row.record.source, row.record.workload) for row in rows}
    alone = [question(record) for record in read_records(UNEQUAL_RUNS).records]
    calibrating = {"pollux": ([1], [2], [1, 1], [1, 1, 1]), "sia": ([1], [2], [1, 1])}
    assert {row.record.workload for row in alone} == {"deepspeech2", "ncf", "yolov3"}
    for row in alone:
        counts = [len(part.gpus) for part in row.job.placement]
        assert (row.record.role != "prediction") == (counts in calibrating[row.record.source]), row.record.where
        assert (row.record.source, row.record.workload) not in counted


ROOT = FOLDER.parent
NAMED = re.compile(r"\bcalibration(?:\.[A-Za-z_]\w*)+\b(?![/.]\w)")


def test_modules_and_functions_that_descriptions_and_pages_name_exist() -> None:
    files = [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "Makefile", *(ROOT / "docs").rglob("*.md")]
    files += [path for folder in ("calibration", "hardware", "workloads") for path in (ROOT / folder).rglob("*.yaml")]
    named = {name for path in files for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 5
    missing = []
    for name in sorted(named):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(name)
    assert not missing
