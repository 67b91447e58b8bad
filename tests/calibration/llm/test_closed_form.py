"""Oracles: FLOP over peak bounds a step from below, Korthikanti's and ZeRO's bytes, and what must not change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.llm.case import Case
from calibration.llm.closed_form import defaults, memory, predict
from calibration.llm.fit import fit
from calibration.llm.rules import model_flop
from calibration.llm.weights import stage_weights
from tests.calibration.llm.test_case import one


def varied(folder: Path) -> list[Case]:
    base = dict(gpus="64", nodes="8", global_batch="512")
    layouts = [dict(tp="1"), dict(tp="8"), dict(tp="4", pp="2"), dict(tp="2", pp="4", virtual_pp="2"), dict(cp="2"), dict(zero_stage="3")]
    return [one(folder, **base, **layout) for layout in layouts]


def test_no_step_beats_the_peak(tmp_path: Path) -> None:
    wrong = []
    for case in varied(tmp_path):
        least = model_flop(case, attention=True) / (case.gpus * case.chip.peak["16bit"])
        found = predict(case, defaults())
        if not 1.2 < found.step_time / least < 4:
            wrong.append(f"{case.axes}: {found.step_time / least}")
    assert not wrong


def test_more_work_takes_longer_and_faster_parts_less(tmp_path: Path) -> None:
    case = one(tmp_path, gpus="64", nodes="8", tp="4", pp="2", global_batch="256")
    at = defaults()
    step = predict(case, at).step_time
    longer = [replace(case, micro_batches=2 * case.micro_batches), replace(case, recompute="full"), replace(case, nic=case.nic / 8)]
    shorter = [replace(case, products="fp8"), replace(case, lora=True), replace(case, virtual=4)]
    assert all(predict(other, at).step_time > step for other in longer)
    assert all(predict(other, at).step_time < step for other in shorter)


def test_states_are_those_of_zero(tmp_path: Path) -> None:
    plain = one(tmp_path, zero_stage="0")
    bytes_of = memory(plain) - memory(replace(plain, zero=1))
    assert bytes_of == pytest.approx(12.0 * stage_weights(plain).total * (1 - 1 / 8))


def test_activations_scale_with_the_micro_batch(tmp_path: Path) -> None:
    case = one(tmp_path)
    first, second, third = (memory(replace(case, micro_batch=size)) for size in (1, 2, 3))
    assert third - second == pytest.approx(second - first)
    assert memory(replace(case, recompute="full")) < first


def test_a_fit_finds_constants_that_made_the_steps(tmp_path: Path) -> None:
    truth = {**defaults(), "product.hopper": 0.6}
    cases = []
    for case in varied(tmp_path):
        for source in ("a/x", "b/x", "c/x"):
            text = {**case.row.text, "source": source}
            row = replace(case.row, text=text, number={**case.row.number, "step_time_s": predict(case, truth).step_time})
            cases.append(replace(case, row=row))
    found, without = fit(cases)
    before, after = (max(abs(predict(case, at).step_time / (case.measured or 1) - 1) for case in cases) for at in (defaults(), found))
    assert before > 0.08
    assert after < 0.03
    assert found["product.hopper"] < 0.68
    assert set(without) == {"a/x", "b/x", "c/x"}
