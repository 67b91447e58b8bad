"""Oracle: the values and messages written here beside each override."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.spec import catalog
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError


@pytest.fixture(autouse=True)
def shelves(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy library as the only catalog, with a cluster of two groups."""
    (library / "hardware/two.yaml").write_text("name: two\ngroups: [{node: toy}, {node: toy, count: 3}]\n")
    monkeypatch.setattr(catalog, "roots", lambda: [library])
    return library


def node(*overrides: str) -> Any:
    return load_hardware("toy", overrides).spec.groups[0].node


def complaint(*overrides: str, name: str = "toy") -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_hardware(name, overrides)
    return caught.value.problems


def test_an_override_reaches_a_key_of_the_file_and_of_a_part_of_a_part() -> None:
    assert node("node.gpu_count=2").gpu_count == 2
    assert node("node.nic.bandwidth=100 Gbps").nic.bandwidth == 12.5e9
    assert node("node.host.cpu.socket_link.efficiency=0.5").host.cpu.socket_link.efficiency == 0.5


def test_an_override_reaches_lists_dicts_and_keys_that_were_not_there() -> None:
    assert node("node.topology.sockets.0.gpus.1=1").topology.sockets[0].gpus == (0, 1)
    assert node("node.gpu.peak.fp16=20 TFLOP/s").gpu.peak["fp16"] == 20e12
    assert node("node.page_cache.policy=lru").page_cache.policy == "lru"
    assert load_hardware("toy", ["fabric.latency=3 us", "fabric.source=tests"]).spec.fabric.latency == 3e-6


def test_an_override_may_name_a_part_extend_one_or_drop_one() -> None:
    assert node("node.gpu=TOY-GPU").gpu.name == "Toy-GPU"
    assert node("node.gpu={extends: toy-gpu, memory: 1 GiB}").gpu.memory == 2**30
    assert node("node.storage=null").storage is None


def test_a_part_named_by_an_override_can_be_changed_by_the_next() -> None:
    (gpu := node("node.gpu=toy-gpu", "node.gpu.memory=1 GiB").gpu)
    assert gpu.memory == 2**30


def test_a_reference_that_leads_nowhere_can_be_overridden(library: Path) -> None:
    text = (library / "hardware/toy.yaml").read_text().replace("gpu: Toy-GPU", "gpu: nothing")
    (library / "hardware/toy.yaml").write_text(text)
    assert node("node.gpu=toy-gpu").gpu.name == "Toy-GPU"


def test_a_volume_of_which_something_is_said_no_longer_stands_in_for_the_users(library: Path) -> None:
    stand_in = "node.storage.volume.assumed=true"
    assert node(stand_in).storage.volume.assumed
    assert not node(stand_in, "node.storage.volume.bandwidth=100 MB/s").storage.volume.assumed
    (library / "hardware/mine.yaml").write_text("extends: toy\nname: mine\nnode: {storage: {volume: {assumed: true}}}\n")
    assert load_hardware("mine").spec.groups[0].node.storage.volume.assumed
    (library / "hardware/own.yaml").write_text("extends: mine\nname: own\nnode: {storage: {volume: {bandwidth: 100 MB/s}}}\n")
    assert not load_hardware("own").spec.groups[0].node.storage.volume.assumed


def test_several_overrides_stand_in_one_text() -> None:
    overridden = node("node.gpu_count=2; node.nic.count=1;;node.nic.bandwidth=1 Gbps")
    assert overridden.nic.bandwidth == 125e6


def test_node_and_price_mean_those_of_the_only_group() -> None:
    [group] = load_hardware("toy", ["groups.0.count=3", "price.on_demand=3600 USD/h", "groups.0.node.gpu_count=2"]).spec.groups
    assert group.price is not None
    assert (group.count, group.price.on_demand) == (3, 1.0)


def test_a_price_taken_from_a_named_machine_can_be_changed(library: Path) -> None:
    (library / "hardware/same.yaml").write_text("name: same\nnode: toy\n")
    price = load_hardware("same", ["price.on_demand=3600 USD/h"]).spec.groups[0].price
    assert price is not None
    assert (price.on_demand, price.date) == (1.0, "")  # the day of the machine's own price is not that of the user's
    assert isinstance(price.source, dict) and price.source["on_demand"] == "--set price.on_demand"


def test_overrides_reach_workloads() -> None:
    spec = load_workload("toy-job", ["training.batch=7", "training.stack.bucket_cap=1 MiB", "model.layers.1.forward=5 FLOP"]).spec
    assert (spec.training.batch, spec.training.stack.exchange.bucket_cap, spec.model.layers[1].forward) == (7, 2**20, 5)


def test_numbers_for_a_key_that_holds_text_stay_as_written() -> None:
    spec = load_workload("toy-job", ["training.stack.nccl=2.20", "training.stack.cudnn=7"]).spec
    assert (spec.training.stack.library.nccl, spec.training.stack.kernels.cudnn) == ("2.20", "7")


HOW = "write KEY=VALUE, for example node.nic.bandwidth='25 Gbps'"
MESSAGES = [
    ("node.nic.bandwidth", f"--set node.nic.bandwidth: {HOW}"),
    ("=3", f"--set =3: {HOW}"),
    ("node..nic=3", f"--set node..nic=3: {HOW}"),
    ("node.gpu_count.x=3", "--set node.gpu_count.x=3: gpu_count is a single value and has no 'x'"),
    (
        "node.topology.sockets.1.gpus=[0]",
        "--set node.topology.sockets.1.gpus=[0]: sockets is a list; write the index of an item, 0 to 0",
    ),
    ("node.topology.sockets.-1=3", "--set node.topology.sockets.-1=3: sockets is a list; write the index of an item, 0 to 0"),
    (
        "node.topology.switches.x=3",
        "--set node.topology.switches.x=3: node.topology.switches: found a block of keys; "
        "write a list, each item a block (name, parent ...)",
    ),
    (
        "node.topology.sockets.0.gpus=0,1",
        "--set node.topology.sockets.0.gpus=0,1: found '0,1'; write a list such as [1, 2], each item a whole number, zero or more",
    ),
    ("node.gpu.memory=[", "--set node.gpu.memory=[: not valid YAML: did not find expected node content"),
    (
        "node.gpu.memory=!!int 3",
        "--set node.gpu.memory=!!int 3: the tag 'tag:yaml.org,2002:int' is not supported; write the value without it",
    ),
    ("name=1e9", "--set name=1e9: '1e9' is ambiguous in YAML; write 1.0e+9 or, for a text, quote it"),
    ("node.gpu=toygpu", "--set node.gpu=toygpu: toygpu is not in the catalog (hardware/parts/gpus/); did you mean toy-gpu?"),
    (
        "node.gpu={extends: toygpu}",
        "--set node.gpu={extends: toygpu}: node.gpu.extends: toygpu is not in the catalog (hardware/parts/gpus/); did you mean toy-gpu?",
    ),
    ("node.nicc.bandwidth=1 Gbps", "--set node.nicc.bandwidth=1 Gbps: node.nicc: unknown key; did you mean 'nic'?"),
]


@pytest.mark.parametrize(("text", "message"), MESSAGES, ids=[text for text, _ in MESSAGES])
def test_an_override_that_cannot_be_applied_has_one_message(text: str, message: str) -> None:
    assert complaint(text) == [message]


def test_a_block_that_another_one_stands_for_is_named() -> None:
    """Machines of the catalog leave ``node.nvlink_transport`` to the class of their links."""
    assert complaint("node.topology.nvlink.link.transport=hop; node.nvlink_transport=null; node.nvlink_transport.launch=9 us") == [
        "--set node.nvlink_transport.launch=9 us: node.nvlink_transport is not set; "
        "set node.topology.nvlink.link.transport.launch, or first name a separate one, node.nvlink_transport=NAME"
    ]
    assert complaint(
        "groups.1.node.topology.nvlink.link.transport=hop; groups.1.node.nvlink_transport=null; groups.1.node.nvlink_transport.launch=9 us",
        name="two",
    ) == [
        "--set groups.1.node.nvlink_transport.launch=9 us: groups.1.node.nvlink_transport is not set; "
        "set groups.1.node.topology.nvlink.link.transport.launch, or first name a separate one, groups.1.node.nvlink_transport=NAME"
    ]


def test_a_block_that_another_one_stands_for_may_still_be_written() -> None:
    own = node("node.nvlink_transport=null; node.nvlink_transport.extends=hop; node.nvlink_transport.launch=9 us")
    assert own.nvlink_transport.launch == pytest.approx(9e-6)


def test_a_block_sets_its_keys_and_leaves_the_others() -> None:
    """Oracle: the same keys, each by its dotted name."""
    block = "node={gpu_count: 2, nic: {bandwidth: 100 Gbps}}"
    assert node(block) == node("node.gpu_count=2", "node.nic.bandwidth=100 Gbps") != node()
    jobs = [["training={batch: 4}", "dataset={samples: 5000}"], ["training.batch=4", "dataset.samples=5000"]]
    nested, dotted = (load_workload("toy-job", overrides).spec for overrides in jobs)
    assert nested == dotted != load_workload("toy-job").spec


def test_an_empty_block_a_part_and_a_mapping_replace_what_was_there() -> None:
    assert node("node.topology.nvlink.pairs={0-1: 2}").topology.nvlink.pairs == {"0-1": 2}
    with pytest.raises(SpecError, match=r"training\.batch: is missing; write"):
        load_workload("toy-job", ["training={}"])


def test_all_overrides_are_judged_at_once() -> None:
    assert [problem.partition(": ")[0] for problem in complaint("node.gpu=x", "a", "node.nic.bandwidth=3")] == [
        "--set a",
        "--set node.gpu=x",
        "--set node.nic.bandwidth=3",
    ]


def test_node_is_ambiguous_where_there_are_groups() -> None:
    assert complaint("node.gpu_count=1", name="two") == [
        "--set node.gpu_count=1: there are 2 groups; write groups.0.node.gpu_count for the first"
    ]
    assert load_hardware("two", ["groups.1.node.nic.bandwidth=1 Gbps"]).spec.groups[1].node.nic.bandwidth == 125e6


def test_a_long_override_is_shortened_in_messages() -> None:
    assert complaint("name=" + "[" * 500)[0].startswith("--set name=" + "[" * 92 + "...: nested deeper than 40 levels")


def test_a_block_is_not_replaced_by_a_single_value() -> None:
    assert complaint("node.host=1 GB")[0].startswith("--set node.host=1 GB: this is a block; set one of its keys: cpu, sockets")
