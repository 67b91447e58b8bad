"""Oracle: the sum written out, and epochs taken one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.whole_job import JobPlan, MachinePace, epochs_in, evaluation_share, whole_job

PACE = MachinePace(first_epoch=200.0, warm_epoch=100.0, evaluation=0.5 / 3, checkpoint=2.0)
TIRED = PACE._replace(throttled_from=4, throttled_epoch=160.0)
times = st.floats(1.0, 1e4)


def test_parts_sum_to_the_whole() -> None:
    job = whole_job(JobPlan(epochs=10, evaluation=0.06, start_up=75.0), PACE)
    assert job == (75.0, 200.0, 900.0, pytest.approx(10 * 0.06 / 3 * 50.0), 20.0, 0.0, 0.0)
    assert job.total == pytest.approx(75 + 200 + 900 + 10.0 + 20.0)


def test_evaluation_is_no_faster_than_its_loaders() -> None:
    """By hand: of a step of 0.6 s, a third of 0.3 s of compute; all of it if it waits for prepared samples, as then they set its pace."""
    assert evaluation_share(0.6, 0.3, 0.0) == pytest.approx(0.1 / 0.6)
    assert evaluation_share(0.6, 0.3, 0.3) == 1.0
    assert evaluation_share(0.6, 0.3, 0.3, ahead=False) == pytest.approx(0.4 / 0.6)


@pytest.mark.parametrize(("epochs", "saves"), [(0.0005, 1), (0.5, 1), (1, 1), (0.1 * 30, 3), (3.0005, 4)])
def test_a_job_saves_whole_checkpoints(epochs: float, saves: int) -> None:
    assert whole_job(JobPlan(epochs), PACE).checkpoints == saves * PACE.checkpoint


@pytest.mark.parametrize(
    ("time", "epochs"), [(1.0, 0), (2.0, 0), (102.0, 0.5), (202.0, 1), (203.5, 1), (204.0, 1), (254.0, 1.5), (304.0, 2)]
)
def test_work_of_a_given_time_is_saved(time: float, epochs: float) -> None:
    assert epochs_in(JobPlan(None, start_up=0.0, time=time), PACE) == epochs


def test_without_checkpoints_and_evaluation_only_training_is_left() -> None:
    assert whole_job(JobPlan(1, checkpoints=False, start_up=0.0), PACE).total == 200.0


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5, 20])
def test_epochs_without_burst_credits_take_what_they_take(epochs: int) -> None:
    one_by_one = sum(200.0 if number == 1 else 100.0 if number < 4 else 160.0 for number in range(1, epochs + 1))
    job = whole_job(JobPlan(epochs, checkpoints=False, start_up=0.0), TIRED)
    assert job.total == pytest.approx(one_by_one)


@pytest.mark.parametrize("tired_from", [2, 3, 4, 10**9])
@pytest.mark.parametrize("epochs", [0.5, 1, 1.5, 2, 3, 3.5, 20])
def test_epochs_in_which_page_caches_fill_take_what_they_take(epochs: float, tired_from: int) -> None:
    pace = TIRED._replace(throttled_from=tired_from, filling=(150.0, 120.0))
    took = [200.0, *(160.0 if number >= tired_from else {2: 150.0, 3: 120.0}.get(number, 100.0) for number in range(2, 30))]
    whole_epochs = int(epochs)
    one_by_one = sum(took[:whole_epochs]) + (epochs - whole_epochs) * took[whole_epochs]
    assert whole_job(JobPlan(epochs, checkpoints=False, start_up=0.0), pace).total == pytest.approx(one_by_one)
    assert epochs_in(JobPlan(None, checkpoints=False, start_up=0.0, time=one_by_one), pace) == pytest.approx(epochs)


@given(times, times, times, st.integers(2, 6) | st.just(10**9), times, st.floats(0, 0.5), st.booleans(), st.floats(1.0, 1e5))
def test_a_job_of_a_given_time_takes_it(
    first: float, warm: float, tired: float, tired_from: int, checkpoint: float, evaluation: float, saves: bool, time: float
) -> None:
    pace = MachinePace(first, warm, 0.5 / 3, checkpoint, tired_from, tired)
    plan = JobPlan(None, evaluation, saves, time=time)
    job, epochs = whole_job(plan, pace), epochs_in(plan, pace)
    idle = time - job.total  # less than a checkpoint, if no more work could be saved
    assert idle == pytest.approx(0.0, abs=1e-6 * time) or (saves and 0.0 < idle < checkpoint and epochs == int(epochs))
    assert (epochs > 0) == (time > plan.start_up + saves * checkpoint)
    if epochs > 0:
        assert whole_job(plan._replace(epochs=epochs, time=None), pace) == pytest.approx(job)


def test_time_that_start_up_takes_leaves_no_epoch() -> None:
    assert whole_job(JobPlan(None, time=60.0, start_up=75.0), PACE) == (60.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("epochs", "time", "said"), [(0, None, "more than 0"), (None, None, "epochs or a time"), (1, 2.0, "epochs or a time")]
)
def test_a_job_has_one_length(epochs: float | None, time: float | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        whole_job(JobPlan(epochs, time=time), PACE)
