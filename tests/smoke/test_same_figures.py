"""Does one question have one answer, whichever command is asked?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import sim
from sim.cli import main

Capture = pytest.CaptureFixture[str]
HOUR = 3600.0


def printed(capsys: Capture, *words: str) -> Any:
    """Return the JSON document of the command *words*."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_whatif_pays_for_the_nodes_that_the_job_uses(capsys: Capture) -> None:
    """Oracle: `run`, which rents one of the two nodes."""
    job = ["2x-p3.8xlarge", "alexnet", "--placement", "4"]
    of_run, whatif = printed(capsys, "run", *job, "--fast"), printed(capsys, "whatif", *job)
    assert whatif["cost_per_epoch_usd"] == pytest.approx(of_run["cost_per_epoch_usd"])
    assert whatif["price_usd_per_h"] == pytest.approx(of_run["price"]["usd_per_h"]) == 12.24
    twice = whatif["resources"][0]["twice"]
    assert twice["cost_per_epoch_usd"] == pytest.approx(12.24 / HOUR * twice["epoch_time_s"])


@pytest.mark.parametrize(("stack", "servers"), [([], 0), (["--stack", "tf-parameter-server"], 1)])
def test_all_commands_rent_the_servers_that_the_job_uses(capsys: Capture, stack: list[str], servers: int) -> None:
    """By hand: eight workers at 0.723 USD/h, and each server in use at 0.1428 USD/h; the machine has two servers."""
    machine, usd_per_h = "cm-dare-k80", 8 * 0.723 + servers * 0.1428
    of_run = printed(capsys, "run", machine, "resnet15-cifar", "--epochs", "40", "--fast", *stack)
    assert of_run["price"]["usd_per_h"] == pytest.approx(usd_per_h)
    assert printed(capsys, "whatif", machine, "resnet15-cifar", *stack)["price_usd_per_h"] == pytest.approx(usd_per_h)
    compared = printed(capsys, "compare", "resnet15-cifar", machine, "--epochs", "40", "--jobs", "1", *stack)
    assert compared["rows"][0]["whole_job"]["cost_usd"] == pytest.approx(of_run["whole_job"]["cost_usd"])
    renting = ["--epochs", "40", "--nodes", "8", "--batch", "128", "--budget-usd", "100", "--on-demand", "--jobs", "1"]
    candidate = printed(capsys, "recommend", "resnet15-cifar", machine, *renting, *stack)["candidates"][0]
    assert candidate["total_cost_usd"] == pytest.approx(of_run["whole_job"]["cost_usd"])
    weeks = printed(capsys, "goodput", machine, "resnet15-cifar", "--days", "2", *stack)
    assert weeks["cost_usd"] == pytest.approx(48 * usd_per_h) and weeks["price"]["usd_per_h"] == pytest.approx(usd_per_h)
    on_demand = printed(capsys, "spot", machine, "resnet15-cifar", "--epochs", "4000", *stack)["on_demand"]
    assert on_demand["cost_usd"] == pytest.approx(usd_per_h / HOUR * on_demand["time_s"], rel=0.02)  # without the time to boot


def test_a_power_limit_is_that_of_all_commands(capsys: Capture) -> None:
    """Oracle: `whatif`, for which GPUs 5% slower change nothing, as the job waits for its loaders; and each command the others."""
    job, capped = ["p3.8xlarge", "alexnet"], ["--power-cap", "150 W"]
    free, limited = (
        printed(capsys, "run", *job, "--fast"),
        printed(capsys, "run", *job, *capped, "--epochs", "3", "--with-failures", "--fast"),
    )
    gpus = next(row for row in printed(capsys, "whatif", *job)["resources"] if row["resource"] == "gpu")
    assert gpus["step_time_5_percent_slower_s"] == pytest.approx(free["step_time_s"]) == pytest.approx(limited["step_time_s"])
    assert limited["energy"]["energy_per_sample_j"] < 0.97 * free["energy"]["energy_per_sample_j"]
    row = printed(capsys, "compare", "alexnet", "p3.8xlarge", *capped, "--epochs", "3", "--jobs", "1")["rows"][0]
    for name in ("step_time_s", "epoch_time_s", "cost_per_epoch_usd", "stalls_s"):
        assert row[name] == pytest.approx(limited[name])
    assert row["whole_job"]["time_s"] == pytest.approx(limited["whole_job"]["time_s"])
    assert row["energy"]["kwh_per_epoch"] == pytest.approx(limited["energy"]["kwh_per_epoch"])
    weeks = printed(capsys, "goodput", *job, *capped, "--epochs", "3")
    for name in ("step_time_s", "days", "energy_kwh"):
        assert weeks[name] == pytest.approx(limited["with_failures"][name])
    assert weeks["step_time_s"] == pytest.approx(limited["step_time_s"])
    assert main(["run", *job, *capped, "--fast"]) == 0
    joules, without = (document["energy"]["energy_per_sample_j"] for document in (limited, free))
    less = f"a sample {1e3 * joules:.3g} mJ instead of {1e3 * without:.3g} mJ ({100 * (joules / without - 1):+.1f}%)"
    assert f"503 ms instead of 503 ms (+0.0%), and {less}" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["40 GB", "70 GB", "100 GB"])
def test_burst_credits_under_a_power_limit_are_those_of_slower_steps(capsys: Capture, size: str) -> None:
    """Closed form: credits last for ``C / (1 / step - 1 / step without credits)``, and the disk alone sets the step without credits."""
    job = ["p3.2xlarge", "resnet50", "--fast", "--set", f"node.storage.volume.size={size}", "--set", "node.host.memory=30 GB"]
    free, limited = printed(capsys, "run", *job), printed(capsys, "run", *job, "--power-cap", "150 W")
    before, end = free["burst_credits_end"], limited["burst_credits_end"]
    warnings = [warning for warning in limited["warnings"] if "burst credits" in warning]
    alone = 1 / before["step_time_s"]
    if limited["step_time_s"] > before["step_time_s"]:  # the disk is faster without credits
        assert end is None and warnings == []
        return
    assert end["step_time_s"] == pytest.approx(before["step_time_s"], rel=1e-4)  # but for the first batch of an epoch
    per_step = (1 / free["step_time_s"] - alone) / (1 / limited["step_time_s"] - alone)
    longer = per_step * free["epoch_time_s"] / limited["epoch_time_s"]
    assert (before["epoch"] - 1) * longer <= end["epoch"] <= before["epoch"] * longer + 1  # whole epochs
    assert end["epoch"] > before["epoch"] and len(warnings) == 1 and f"in epoch {end['epoch']};" in warnings[0]
    steps = end["epoch_time_s"] - limited["epoch_time_s"], end["step_time_s"] - limited["step_time_s"]
    assert steps[0] == pytest.approx(limited["epoch_time_s"] / limited["step_time_s"] * steps[1], rel=1e-2)


def test_a_job_on_spot_machines_reads_what_no_cache_holds_yet(capsys: Capture) -> None:
    """Oracle: the whole job of `run`, without its start and its checkpoints; with all cached it would take a quarter of the time."""
    disk = ["--set", "node.storage.volume.bandwidth=60 MB/s"]
    job = printed(capsys, "run", "p3.16xlarge", "resnet18", "--nodes", "4", "--epochs", "5", "--fast", *disk)["whole_job"]
    spot = printed(capsys, "spot", "p3.16xlarge", "resnet18", "--workers", "4", "--epochs", "5", "--trials", "20", *disk)
    training = job["time_s"] - job["parts_s"]["start_up"] - job["parts_s"]["checkpoints"]
    beyond = spot["on_demand"]["time_s"] - training - spot["checkpoint"]["write_s"]
    assert 65.0 < beyond < 80.0  # to start machines on demand: cake-lab/CM-DARE
    assert spot["spot"]["time_s"]["mean"] > training


def test_evaluating_all_samples_takes_as_long_as_loaders_take_to_deliver_them(capsys: Capture) -> None:
    """Closed form: alexnet on a p3.8xlarge waits for its loaders, so passing over the data set once more takes another epoch."""
    epochs = ["--epochs", "3", "--evaluation", "1", "--fast"]
    waiting = printed(capsys, "run", "p3.8xlarge", "alexnet", *epochs)
    assert waiting["whole_job"]["parts_s"]["evaluation"] == pytest.approx(3 * waiting["epoch_time_s"])
    alone = printed(capsys, "run", "p3.8xlarge", "alexnet", *epochs, "--set", "input.num_workers=0")  # the training process prepares
    per_step = alone["stalls_s"]["prep"] + alone["stalls_s"]["compute"] / 3
    evaluated = 3 * alone["epoch_time_s"] * per_step / alone["step_time_s"]
    assert alone["whole_job"]["parts_s"]["evaluation"] == pytest.approx(evaluated)
    computing = printed(capsys, "run", "p3.8xlarge", "vgg16", *epochs)
    share = computing["stalls_s"]["compute"] / computing["step_time_s"]
    assert computing["whole_job"]["parts_s"]["evaluation"] == pytest.approx(share * computing["epoch_time_s"])


def test_equal_nodes_in_two_groups_are_one_kind_under_a_power_limit(capsys: Capture, tmp_path: Path) -> None:
    """Oracle: the same two nodes in one group."""
    (tmp_path / "pair.yaml").write_text("name: pair\ngroups:\n  - {node: p3.8xlarge, count: 1}\n  - {node: p3.8xlarge, count: 1}\n")
    job = ["resnet50", "--power-cap", "200 W", "--fast"]
    two, one = (printed(capsys, "run", machine, *job) for machine in (str(tmp_path / "pair.yaml"), "2x-p3.8xlarge"))
    assert two["step_time_s"] == pytest.approx(one["step_time_s"])
    assert two["energy"]["power_cap"] == pytest.approx(one["energy"]["power_cap"])


def test_the_order_of_groups_changes_no_figure(capsys: Capture, tmp_path: Path) -> None:
    """Oracle: the same cluster with its workers first; its servers have no disk, other memory and no GPU."""
    described = yaml.safe_load((Path(sim.__file__).parents[1] / "hardware" / "cm-dare-k80.yaml").read_text(encoding="utf-8"))
    figures = []
    for name, groups in (("workers-first.yaml", described["groups"]), ("servers-first.yaml", described["groups"][::-1])):
        (tmp_path / name).write_text(yaml.safe_dump(described | {"name": "ordered", "groups": groups}), encoding="utf-8")
        machine, job = str(tmp_path / name), ["--epochs", "40"]
        of_run = printed(capsys, "run", machine, "resnet15-cifar", *job, "--fast")
        faster = printed(capsys, "whatif", machine, "resnet15-cifar")["faster_machines"]
        renting = [*job, "--nodes", "4", "--budget-usd", "100", "--jobs", "1"]
        candidates = printed(capsys, "recommend", "resnet15-cifar", machine, *renting)["candidates"]
        figures.append([of_run["whole_job"], of_run["price"], faster, candidates])
    assert figures[0] == figures[1] and figures[0][0]["parts_s"]["checkpoints"] > 0 and figures[0][2]


def test_recommend_names_the_command_for_unlike_nodes(capsys: Capture, tmp_path: Path) -> None:
    """Oracle: that command, with the same words."""
    machine = tmp_path / "unlike.yaml"
    machine.write_text("name: unlike\ngroups:\n  - {node: p3.2xlarge, count: 1}\n  - {node: g4dn.xlarge, count: 1}\n", encoding="utf-8")
    assert main(["recommend", "resnet50", str(machine), "--epochs", "1", "--budget-usd", "100", "--jobs", "1"]) == 1
    said = capsys.readouterr().out
    assert "unlike: has 2 groups of workers, but only numbers of equal nodes are tried; `compare` shows its time and cost" in said
    assert "groups.0.count" not in said
    assert printed(capsys, "compare", "resnet50", str(machine), "--epochs", "1", "--jobs", "1")["rows"][0]["whole_job"]["cost_usd"] > 0
