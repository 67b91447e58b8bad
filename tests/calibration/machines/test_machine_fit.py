"""Do fits find what a record was made from, and say how sure they are? Oracle: records simulated from known constants, in 300 seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from calibration.machines.fit_run import collective_fits
from calibration.machines.machine_fit import fits, merge_records
from calibration.measure.machine_record import write_record
from sim.spec.yaml import SpecError
from tests.calibration.machine_records import TRUTH, cpu_record, gpu_record

SEEDS = 300


def fit_records(folder: Path, *records: object) -> dict:
    paths = [folder / f"{number}.json" for number in range(len(records))]
    for path, record in zip(paths, records, strict=True):
        write_record(path, record)
    measured = merge_records(paths)
    return fits(measured) | collective_fits(measured)


@pytest.mark.parametrize("record", [cpu_record(), gpu_record()])
def test_without_noise_the_constants_come_out(tmp_path: Path, record: object) -> None:
    for subject, fit in fit_records(tmp_path, record).items():
        for estimate in fit.posterior.estimates:
            truth = TRUTH.get(subject, {}).get(estimate.name)
            if truth is not None and (subject, record.machine["device"]) != ("memory", "cuda"):
                assert estimate.value == pytest.approx(truth, rel=0.03), (subject, estimate.name)


@pytest.mark.nightly
def test_intervals_hold_the_truth_in_19_of_20_seeds(tmp_path: Path) -> None:
    """Each parameter alone, where its data decide it: 95% intervals, 300 records, between 90 and 99%."""
    inside: Counter = Counter()
    total: Counter = Counter()
    for seed in range(SEEDS):
        for subject, fit in fit_records(tmp_path, cpu_record(0.06, seed)).items():
            for estimate in fit.posterior.estimates:
                truth = TRUTH.get(subject, {}).get(estimate.name)
                if truth is not None and estimate.identified:
                    total[subject, estimate.name] += 1
                    inside[subject, estimate.name] += estimate.low <= truth <= estimate.high
    shares = {key: inside[key] / count for key, count in total.items() if count > SEEDS / 2}
    assert len(shares) >= 10
    assert all(0.90 <= share <= 0.99 for share in shares.values()), shares


def test_records_of_one_machine_are_one_sample(tmp_path: Path) -> None:
    one, both = fit_records(tmp_path, cpu_record(0.1, 1)), fit_records(tmp_path, cpu_record(0.1, 1), cpu_record(0.1, 2))
    assert len(both["gemm fp32"].times) == 2 * len(one["gemm fp32"].times)
    with pytest.raises(SpecError, match=r"vcpus 8, but .* has 4; fit each machine separately"):
        fit_records(tmp_path, cpu_record(), cpu_record(vcpus=8))


def test_odd_points_do_not_decide(tmp_path: Path) -> None:
    record = cpu_record(0.02)
    record.rows("gemm")[6]["times_s"] = [20 * time for time in record.rows("gemm")[6]["times_s"]]
    assert fit_records(tmp_path, record)["gemm fp32"]["time per unit"].value == pytest.approx(1 / 80e9, rel=0.1)
