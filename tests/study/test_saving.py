"""Does a checkpoint slow the steps beside it as it should? Oracles: the same run on a slower network, no traffic, no network at all."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from sim.cli import main
from sim.cluster.checkpoint import CheckpointParts, Outflow, outflows
from sim.cluster.topology import node_graph
from sim.mesh import LayoutRun, layout_scene
from sim.simulate import Run, simulate
from sim.spec.library import load_part
from sim.spec.stores import Store
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.saving import saved_during_run
from sim.study.scenario import Scenario, answer
from sim.training.layouts.play import play

LAYOUT = (("--shard", "parallel.shard", "parameters"),)


@cache
def run(gigabits: float = 25.0) -> Run:
    """A model in data parallelism whose gradients are bound by its one NIC."""
    sets = (f"node.nic.bandwidth={gigabits:g} Gbps",)
    return answer(Scenario("hgx-h100", "vgg16", sets, nodes=2, batch=8)).run


@cache
def laid_out(gigabits: float = 25.0) -> LayoutRun:
    """A decoder whose shards are gathered over slow NICs."""
    answered = layout_answer(
        Scenario("hgx-h100", "llama-3.2-1b", (f"node.nic.bandwidth={gigabits:g} Gbps",), nodes=2, batch=1, layout=LAYOUT)
    )
    return answered.run


def beside(simulated: Run, flows: list[Outflow]) -> float:
    again = simulate(simulated.hardware, [simulated.jobs[0].job], cold=False, outflows_of=lambda slot: flows)
    return again.jobs[0].warm.step_time


def leaving(simulated: Run | LayoutRun, share: float) -> list[Outflow]:
    """Return a flow out of each NIC, of that *share* of what the NIC carries."""
    node = simulated.node if isinstance(simulated, LayoutRun) else simulated.node()
    graph = node_graph(node)
    ways = [graph.memory_to_network(nic) for nic in range(node.nic.count)]
    return [Outflow(way, share * min(graph.links[link].capacity for link in way)) for way in ways]


def test_data_parallelism_is_as_fast_as_on_a_network_that_much_slower() -> None:
    """A flow with a cap below its fair share leaves gradients what it does not take of each NIC; beside it they fill less than all."""
    plain = run()
    assert plain.jobs[0].warm.step_time > 1.2 * run(100.0).jobs[0].warm.step_time  # bound by the network
    efficiency = plain.node().nic.transport.efficiency[0][1]
    for share in (0.05, 0.2):
        least, most = (run(min(25.0, 25.0 * (1 - share) / filled)).jobs[0].warm.step_time for filled in (efficiency, 1.0))
        assert least < beside(plain, leaving(plain, share)) < most
        assert plain.jobs[0].warm.step_time <= least and most < 1.06 * least
    assert beside(plain, leaving(plain, 1e-9)) == pytest.approx(plain.jobs[0].warm.step_time, rel=1e-6)
    assert beside(plain, []) == pytest.approx(plain.jobs[0].warm.step_time, rel=1e-9)


def test_a_layout_is_as_fast_as_on_a_network_that_much_slower() -> None:
    plain = laid_out()
    for share in (0.05, 0.2):
        scene = layout_scene(plain.hardware, plain.workload, plain.layout)
        seconds = play(replaced(scene, leaving(plain, share))).time
        assert seconds == pytest.approx(laid_out(25.0 * (1 - share)).step_time, rel=0.01)
        assert seconds > plain.step_time * (1 + share / 2)


def replaced(scene: object, flows: list[Outflow]) -> object:
    from dataclasses import replace

    return replace(scene, outflows=flows)  # type: ignore[type-var]


def test_a_store_of_no_speed_and_a_single_node_cost_only_the_copy() -> None:
    """Oracle: without gradients on the NIC there is nothing to slow; the disk is on no link of the network."""
    alone = answer(Scenario("hgx-h100", "gpt2", nodes=1, batch=4, precision="amp_bf16")).run
    for name in ("object-store", "disk"):
        saved = saved_during_run(alone, name)
        assert saved.step_while_saving == pytest.approx(saved.step, rel=1e-6) and saved.cost == pytest.approx(saved.blocking, rel=1e-4)
    by_disk = saved_during_run(run(), "disk")
    assert by_disk.step_while_saving == by_disk.step and by_disk.write_time > 0


def test_parts_share_the_store() -> None:
    """Oracle: caps of all nodes together are the store's bandwidth, none above what a writer gets."""
    node = run().node()
    store = load_part(Store, "object-store")
    flows = outflows(node, CheckpointParts(1e9, 16, 2, 8), store)
    assert len(flows) == 8
    assert 2 * sum(flow.cap for flow in flows) == pytest.approx(min(store.bandwidth, 16 * (store.per_writer or store.bandwidth)))
    assert outflows(node, CheckpointParts(1e9, 16, 2, 8), None) == []


@pytest.mark.parametrize("machines", [("p3.16xlarge", "p4d.24xlarge"), ("p4d.24xlarge", "p3.8xlarge"), ("p3.16xlarge", "p3.16xlarge")])
def test_parts_leave_each_of_unlike_nodes_by_its_own_links(machines: tuple[str, str], tmp_path: Path) -> None:
    """Oracle: a checkpoint never makes steps faster, and two groups of equal nodes are one group of two."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ngroups:\n" + "".join(f"  - {{node: {name}, count: 1}}\n" for name in machines))
    mixed = answer(Scenario(str(path), "vgg16", batch=8)).run
    saved = saved_during_run(mixed, "object-store")
    assert saved.step_while_saving >= saved.step * (1 - 1e-9) and saved.write_time > 0.0
    if machines[0] == machines[1]:
        one = saved_during_run(answer(Scenario(machines[0], "vgg16", nodes=2, batch=8)).run, "object-store")
        assert saved.step_while_saving == pytest.approx(one.step_while_saving, rel=1e-9)


def test_the_command_tells_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "hgx-h100", "llama-3.2-1b", "--nodes", "2", "--shard", "parameters", "--store", "tectonic"]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    saved = document["checkpoint"]
    assert saved["writers"] == 16
    slower = 1 - document["step_time_s"] / saved["step_time_beside_s"]
    assert saved["cost_s"] == pytest.approx(saved["blocking_s"] + saved["written_s"] * slower)
    assert main(command) == 0
    assert "checkpoint of" in capsys.readouterr().out
    for word, other, said in (("tectonic", "nowhere", "not in the catalog"), ("2", "1..2", "write one number")):
        assert main([other if each == word else each for each in command]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SpecError, match="not in the catalog"):
        saved_during_run(run(), "nowhere")


def test_a_checkpoint_that_does_not_fit_its_store_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Oracle: 12 bytes for each of 124.4 M parameters of GPT-2 are 1.49 GB, twice of which is more than 2.9 GB and less than 3."""
    store = tmp_path / "mine.yaml"
    for size, code in (("2.9 GB", 2), ("3 GB", 0)):
        store.write_text(f"name: mine\nbandwidth: 10 GB/s\nsize: {size}\nsource: test\n")
        assert main(["run", "hgx-h100", "gpt2", "--precision", "amp_bf16", "--store", str(store)]) == code
        assert ("2 checkpoints of 1.49 GB do not fit into 2.9 GB" in capsys.readouterr().err) == bool(code)
