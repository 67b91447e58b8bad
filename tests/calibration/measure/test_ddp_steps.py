"""Are training steps run as wanted? Oracles: SGD with momentum in closed form, on gradients averaged over ranks; the counts asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.measure.ddp_steps import StepRequest, run_rank, spawn
from sim.spec.yaml import SpecError

pytestmark = pytest.mark.needs("torch")

MODELS = str(Path(__file__).parents[1] / "step_models.py")
WANTED = StepRequest(f"{MODELS}:Weight", ("4",), batch=3, steps=2, warmup=2)
RATE, MOMENTUM = 1e-6, 0.9


def weights(start: float, gradient: float, steps: int) -> list[float]:
    """The weight before each step: v <- momentum v + gradient; weight <- weight - rate v (torch.optim.SGD)."""
    weight, velocity = [start], 0.0
    for _ in range(steps - 1):
        velocity = MOMENTUM * velocity + gradient
        weight.append(weight[-1] - RATE * velocity)
    return weight


def seen(folder: Path, rank: int) -> tuple[list[float], list[str]]:
    lines = [line.split() for line in (folder / str(rank)).read_text().splitlines()]
    return [float(line[0]) for line in lines], [line[1] for line in lines]


@pytest.mark.nightly
def test_ranks_start_alike_and_average_their_gradients(tmp_path: Path) -> None:
    rank_steps = spawn(WANTED, 2, environment={"STEP_MODELS_LOG": str(tmp_path)})
    assert [(steps.rank, len(steps.times), steps.parameters) for steps in rank_steps] == [(0, 2, 1), (1, 2, 1)]
    assert all(time > 0 for steps in rank_steps for time in steps.times)
    for rank in range(2):
        values, batches = seen(tmp_path, rank)
        assert values == pytest.approx(weights(0.0, 1.5, 4), abs=1e-12)
        assert batches == ["3"] * 4


@pytest.mark.nightly
def test_without_exchange_each_rank_trains_alone(tmp_path: Path) -> None:
    spawn(replace(WANTED, exchange=False), 2, before=lambda rank: ["env"], environment={"STEP_MODELS_LOG": str(tmp_path)})
    for rank in range(2):
        assert seen(tmp_path, rank)[0] == pytest.approx(weights(rank, rank + 1, 4), abs=1e-12)


def test_one_rank_runs_in_this_process() -> None:
    steps = run_rank(replace(WANTED, steps=3, warmup=0))
    assert (steps.rank, len(steps.times)) == (0, 3)
    assert steps.median == sorted(steps.times)[1]


def test_a_cpu_that_is_asked_for_is_used_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that reports a GPU, and fails as soon as it is used."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("the GPU was touched"))
    assert len(run_rank(replace(WANTED, device="cpu", exchange=False)).times) == 2


@pytest.mark.nightly
def test_a_killed_rank_ends_all(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="rank 1 was killed by signal 9"):
        spawn(replace(WANTED, arguments=("dies=1",)), 2)


def test_what_cannot_run_is_said_in_a_sentence() -> None:
    with pytest.raises(SpecError, match="batch: 0 is less than 1"):
        replace(WANTED, batch=0)
    with pytest.raises(SpecError, match="precision: 'fp12' is not one of fp32"):
        replace(WANTED, precision="fp12")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="has no 'Weights'; did you mean 'Weight'"):
        run_rank(replace(WANTED, model=f"{MODELS}:Weights"))
    with pytest.raises(SpecError, match=r"returned int; expected a torch\.nn\.Module"):
        run_rank(replace(WANTED, model=f"{MODELS}:no_module", warmup=0))
    with pytest.raises(SpecError, match=r"rank 0 failed: .*: calling it failed: TypeError"):
        spawn(replace(WANTED, arguments=("color=1",)), 1)
