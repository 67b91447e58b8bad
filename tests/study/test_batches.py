"""Are batches of unlike machines the best ones? Oracles: every share simulated, every share of drawn costs, closed forms."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from sim.cli import main
from sim.events import Cause
from sim.report.batches import batches_text
from sim.report.verdict import verdict
from sim.spec.yaml import SpecError
from sim.study.batch_search import BatchShare, Search, find_shortest_step
from sim.study.batches import batches
from sim.study.scenario import Scenario, answer

UNLIKE = "name: unlike\ngroups:\n  - {node: p2.xlarge, count: 2}\n  - {node: p3.2xlarge, count: 1}\n"
EQUAL = "name: equal\ngroups:\n  - {node: p3.2xlarge, count: 2}\n  - {node: p3.2xlarge, count: 1}\n"
SYNTHETIC = "input.loader=synthetic"
COLOCATED = ("training.stack.servers.placement=colocated", "training.stack.servers.count=1")


@pytest.fixture
def unlike(tmp_path: Path) -> str:
    path = tmp_path / "unlike.yaml"
    path.write_text(UNLIKE)
    return str(path)


def test_the_search_finds_what_every_share_shows() -> None:
    """Oracle: drawn costs of two and three groups, of which the work is a bound, and all their shares."""
    draw = random.Random(5)
    for case in range(30):
        gpus = [draw.choice((1, 2, 3)) for _ in range(draw.choice((2, 3)))]
        rates = [draw.uniform(0.5, 5.0) for _ in gpus]
        noise: dict[tuple[int, ...], float] = {}

        def work(group: int, batch: int, rates: list[float] = rates) -> float:
            return batch * rates[group]

        def step_time(sizes: tuple[int, ...], noise: dict[tuple[int, ...], float] = noise, rates: list[float] = rates) -> float:
            extra = noise.setdefault(sizes, draw.uniform(0.0, 3.0))
            return max(batch * rate for batch, rate in zip(sizes, rates, strict=True)) + extra

        total = sum(gpus) * 5
        search = find_shortest_step(Search([BatchShare(count, 12) for count in gpus], total, step_time, work))
        simulated = len(search.simulated_times)
        every = [
            sizes for sizes in itertools.product(range(1, 13), repeat=len(gpus))
            if sum(count * batch for count, batch in zip(gpus, sizes, strict=True)) == total
        ]  # fmt: skip
        assert search.simulated_times[search.best] == min(step_time(sizes) for sizes in every), case
        assert not search.simulations_left
        assert simulated <= len(every)


def test_batches_are_the_best_under_the_simulator(unlike: str) -> None:
    """Oracle: every share of a small batch simulated by `run`, with DDP and with a parameter server; no step is below its bound."""
    cases = (("alexnet", (SYNTHETIC,), None), ("resnet18", (SYNTHETIC, *COLOCATED), "tf-parameter-server-sync"))
    for model, sets, stack in cases:
        best_batches = batches(Scenario(unlike, model, sets, stack=stack), 20)
        assert not best_batches.search.simulations_left
        times = {}
        for slow in range(1, 10):
            sizes = (slow, 20 - 2 * slow)
            own = (*sets, f"training.batches={list(sizes)}")
            run = answer(Scenario(unlike, model, own, stack=stack)).run.jobs[0]
            times[sizes] = run.warm.step_time
            assert run.throughput == pytest.approx(20 / run.warm.step_time)
            assert best_batches.search.bound(sizes) <= run.warm.step_time
        assert best_batches.search.simulated_times[best_batches.search.best] == pytest.approx(min(times.values()), rel=1e-12), model
        assert best_batches.search.best[0] < best_batches.search.best[1]


def test_equal_machines_take_equal_batches_and_batches_mean_what_batch_does(unlike: str, tmp_path: Path) -> None:
    """Oracles: a run with one batch for all; groups described alike are one machine, whose batches may not differ."""
    plain = answer(Scenario(unlike, "alexnet", (SYNTHETIC,), batch=8)).run.jobs[0]
    named = answer(Scenario(unlike, "alexnet", (SYNTHETIC, "training.batches=[8,8]"))).run.jobs[0]
    assert named.warm.step_time == plain.warm.step_time
    assert (named.throughput, named.job.samples) == (plain.throughput, 24)
    alike = tmp_path / "equal.yaml"
    alike.write_text(EQUAL)
    with pytest.raises(SpecError, match="identical machines"):
        answer(Scenario(str(alike), "alexnet", (SYNTHETIC, "training.batches=[8,4]")))


def test_a_run_with_equal_batches_on_unlike_gpus_names_what_divides_them(tmp_path: Path) -> None:
    """By hand: the share of the step that GPUs wait for others. Only batches of their own shorten it, which the verdict left out."""
    box, said = tmp_path / "box.yaml", []
    for other, fields in (("g5.12xlarge", ()), ("g5.12xlarge", ("training.batches=[74,86]",)), ("p3.8xlarge", ())):
        box.write_text(f"name: box\ngroups:\n  - {{node: p3.8xlarge, count: 1}}\n  - {{node: {other}, count: 1}}\n")
        run = answer(Scenario(str(box), "resnet50", (SYNTHETIC, *fields))).run
        said.append(verdict(run).partition("Unlike GPUs with equal batches wait ")[2])
        waited = 100 * run.jobs[0].warm.stalls[Cause.STRAGGLER] / run.jobs[0].warm.step_time
        assert not said[-1] or said[-1].startswith(
            f"{waited:.0f}% of the step for the slowest: 'python -m sim batches' with --global-batch 640"
        )
    assert [bool(words) for words in said] == [True, False, False]


def test_the_command_says_the_answer(unlike: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the step of the run that the text tells to make."""
    words = [unlike, "alexnet", "--set", SYNTHETIC, "--global-batch", "60"]
    assert main(["batches", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    own = [group["batch_per_gpu"] for group in document["groups"]]
    run = answer(Scenario(unlike, "alexnet", (SYNTHETIC, f"training.batches={own}"))).run.jobs[0]
    assert document["step_time_s"] == pytest.approx(run.warm.step_time)
    assert document["equal"]["step_time_s"] >= document["step_time_s"]
    assert ": 65,536 samples per step, fp32, " in batches_text({**document, "global_batch": 65536})
    assert main(["batches", *words]) == 0
    assert f"training.batches=[{own[0]},{own[1]}]" in capsys.readouterr().out
    assert main(["run", unlike, "alexnet", "--set", f"{SYNTHETIC};training.batches={own}"]) == 0
    assert f"{own[0]} and {own[1]} samples per GPU" in capsys.readouterr().out


def test_bad_input_is_a_sentence(unlike: str, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("batches", "p3.8xlarge", "alexnet"): "one group of workers",
        ("batches", unlike, "alexnet", "--global-batch", "2"): "cannot divide it; the nearest possible is",
        ("batches", unlike, "resnet18", "--stack", "tf-parameter-server", "--set", ";".join(COLOCATED)): "do not wait for each other",
        ("batches", unlike, "alexnet", "--set", "training.parallel.shard=optimizer"): "training.parallel: batches of unlike machines are",
        ("run", unlike, "alexnet", "--set", "training.batches=[8]"): "1 for 2 groups",
        ("run", unlike, "alexnet", "--batch", "8", "--set", "training.batches=[8,8]"): "write one of the two",
        ("run", unlike, "resnet50", "--set", "training.batches=[4000,8]"): "GPU memory",
        ("run", "p3.2xlarge", "ncf", "--set", "training.batches=[8]"): "exchanges rows by sample",
        ("run", unlike, "alexnet", "--set", "training.batches=[8,8];training.parallel.tensor=2"): "layouts run on identical machines",
    }
    for words, said in cases.items():
        assert main([*words]) == 2, words
        assert said in capsys.readouterr().err, words
