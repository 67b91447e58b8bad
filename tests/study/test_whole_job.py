"""Oracle: the run's own figures, added up by hand."""

from __future__ import annotations

from typing import Any

import pytest

import sim.simulate
import stallsim
from sim.analysis.whole_job import START_UP
from sim.documents import document
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer
from sim.study.whole_job import checkpoint_bytes, course, disk_checkpoint_time, filling_times, in_epochs, plan_due, plan_of, token_count


def of(hardware: str, workload: str, contents: dict[str, Any], **options: Any) -> tuple[float, float]:
    job = course(plan_due(**options), contents, load_hardware(hardware).spec, load_workload(workload).spec)
    return job.epochs, job.parts.total


def test_epochs_and_hours_are_two_sides_of_one_job() -> None:
    contents = document(Scenario("p3.8xlarge", "resnet18"))
    saved = checkpoint_bytes(load_workload("resnet18").spec) / (250 * 2**20)
    _, time = of("p3.8xlarge", "resnet18", contents, epochs=5, hours=None)
    assert time == pytest.approx(START_UP + contents["first_epoch"]["epoch_time_s"] + 4 * contents["epoch_time_s"] + 5 * saved)
    epochs, again = of("p3.8xlarge", "resnet18", contents, epochs=None, hours=time / 3600)
    assert (epochs, again) == pytest.approx((5, time))


def test_a_checkpoint_holds_weights_and_optimizer_state() -> None:
    workload = load_workload("vgg16").spec
    assert checkpoint_bytes(workload) == 2 * 4 * 138_357_544  # momentum
    assert disk_checkpoint_time(workload, load_hardware("p3.16xlarge").spec) == pytest.approx(8 * 138_357_544 / (250 * 2**20))


def test_later_epochs_have_no_burst_credits() -> None:
    scenario = Scenario("p3.16xlarge", "resnet18", ("node.host.memory=64 GiB",), plan=plan_of(50, None))
    run, contents = answer(scenario).run, document(scenario)
    end = contents["burst_credits_end"]
    assert run.credits_end is not None and end["epoch"] == run.credits_end.epoch
    assert end["step_time_s"] > contents["step_time_s"]
    rested = end["epoch"] - 2
    later = rested * contents["epoch_time_s"] + (49 - rested) * end["epoch_time_s"]
    assert contents["whole_job"]["parts_s"]["later_epochs"] == pytest.approx(later)


def test_page_caches_of_several_nodes_fill_for_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: epochs simulated with caches that hold what four nodes have read by then, each a fresh quarter an epoch."""
    scenario = Scenario("p4d.24xlarge", "resnet50", nodes=4, precision="amp_fp16", plan=plan_of(9, None))
    contents, machine = document(scenario), load_hardware("p4d.24xlarge").spec
    took = filling_times(contents, machine, load_workload("resnet50").spec)
    assert 2 <= len(took) < 8 and sorted(took, reverse=True) == list(took)
    warm = contents["epoch_time_s"]
    assert contents["whole_job"]["parts_s"]["later_epochs"] == pytest.approx(sum(took) + (8 - len(took)) * warm)
    for epoch, seconds in enumerate(took, 1):
        hits = 1 - 0.75**epoch
        monkeypatch.setattr(sim.simulate, "_uncached", lambda of, hits=hits: [dict.fromkeys(each, hits) for each in of])
        simulated = document(scenario)["first_epoch"]["epoch_time_s"]
        assert 0.85 * simulated < seconds < 1.001 * simulated
    assert filling_times(contents | {"nodes": 1}, machine, load_workload("resnet50").spec) == ()
    assert filling_times(contents | {"first_epoch": {"epoch_time_s": warm}}, machine, load_workload("resnet50").spec) == ()


def test_the_document_has_the_job_and_its_cost_on_either_market() -> None:
    for market, rate in (("on_demand", 12.24), ("spot", 1.4811)):
        contents = document(Scenario("p3.8xlarge", "resnet18", market=market, plan=plan_of(None, 3.0)))["whole_job"]  # type: ignore[arg-type]
        assert contents["given"] == "time" and contents["time_s"] == pytest.approx(3 * 3600)
        assert contents["cost_usd"] == pytest.approx(3 * rate, rel=1e-4)
        assert sum(contents["parts_s"].values()) == pytest.approx(3 * 3600)
    assert document(Scenario("p3.8xlarge", "resnet18"))["whole_job"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 1, "hours": 1}, "write one of the two"),
        ({"epochs": 0, "hours": None}, "--epochs 0: write more than 0"),
        ({"epochs": None, "hours": float("nan")}, "--hours nan"),
        ({"epochs": 1, "hours": None, "evaluation": -0.1}, "--evaluation -0.1"),
        ({"epochs": 1, "hours": None, "evaluation": 5.0}, "--evaluation 5: write a fraction of the training samples from 0 to 1"),
        (
            {"epochs": None, "hours": None, "checkpoints": False},
            "--no-checkpoints: belongs to a whole job; add",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        plan_of(**options)


def test_tokens_are_epochs_of_the_data_set() -> None:
    workload = load_workload("llama-3.2-1b").spec
    sequence, samples = 8192, workload.dataset.samples
    plan = plan_of(None, None, tokens="300B")
    assert plan is not None
    assert in_epochs(plan, 8, workload).epochs == pytest.approx(300e9 / (samples * sequence))
    assert [token_count(text) for text in ("5", "1.5k", "2M", "15.6T")] == [5, 1500, 2e6, 15.6e12]
    short = plan_of(None, None, tokens="60K")
    assert short is not None
    with pytest.raises(SpecError, match="one step takes 65,536"):
        in_epochs(short, 8, workload)
    for text in ("0", "many", "-3B", "3X"):
        with pytest.raises(SpecError, match="write a number of tokens"):
            token_count(text)
    with pytest.raises(SpecError, match="one of the three"):
        plan_of(1.0, None, tokens="3B")
    with pytest.raises(SpecError, match="has no token sequences"):
        in_epochs(plan, 8, load_workload("vgg16").spec)


@pytest.mark.parametrize(
    ("layout", "bytes_of_parameter", "writing_nodes"),
    [
        ({"tp": 8}, 12, 1),  # four replicas, of which one node writes the whole model
        ({"tp": 8, "shard": "optimizer"}, 12, 4),
        ({"pp": 4}, 12, 4),
        ({"shard": "parameters", "replicate": 2}, 12, 2),
        ({"tp": 8, "stack": "megatron-core"}, 14, 1),  # weights of 2 bytes, and fp32 master weights
    ],
)
def test_a_whole_job_saves_what_goodput_saves(layout: dict[str, Any], bytes_of_parameter: int, writing_nodes: int) -> None:
    """Oracle: bytes per parameter and writers counted by hand; the disks of hgx-h100 together write 24 GB/s on each node."""
    parallel = {name: value for name, value in layout.items() if name != "stack"}
    run = stallsim.run("hgx-h100", "llama-3.1-8b", nodes=4, parallel=parallel, stack=layout.get("stack"), epochs=1e-4)
    nbytes = bytes_of_parameter * run.run.workload.model.parameters
    assert checkpoint_bytes(run.run.workload) == nbytes
    assert run.document["whole_job"]["parts_s"]["checkpoints"] == pytest.approx(nbytes / writing_nodes / 24e9)
    weeks = stallsim.goodput("hgx-h100", "llama-3.1-8b", days=1, nodes=4, parallel=parallel, stack=layout.get("stack"), trials=2)
    assert weeks.attrs["checkpoint"]["bytes"] == nbytes


def test_spot_saves_the_types_of_the_run_too() -> None:
    """Oracle: weights and the two moments of torch.optim.Adam of 2 bytes each, not 12 bytes per parameter."""
    workload = load_workload("bert-large-seq384", ["training.precision=bf16"]).spec
    assert checkpoint_bytes(workload) == 6 * workload.model.parameters
