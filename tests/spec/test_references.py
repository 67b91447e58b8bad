"""Oracle: documents merged by hand, following RFC 7386 (JSON merge patch): own values win, blocks merge, null drops a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.references import Resolver
from sim.spec.workload import Workload
from sim.spec.yaml import Document, SpecError

pytestmark = pytest.mark.usefixtures("toys")


def resolved(folder: Path, text: str) -> Document:
    path = folder / "mine.yaml"
    path.write_text(text)
    resolver = Resolver()
    document = resolver.finish(resolver.open(path, Hardware), Hardware)
    if resolver.problems:
        raise SpecError(resolver.problems)
    return document


def group(folder: Path, text: str, index: int = 0) -> dict[str, Any]:
    return resolved(folder, text).value["groups"][index]  # type: ignore[no-any-return]


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        resolved(folder, text)
    return [problem.removeprefix(f"{folder}/mine.yaml:") for problem in caught.value.problems]


def test_a_name_stands_for_the_part_it_names(library: Path) -> None:
    node = group(library, "name: mine\nnode: {gpu: toy-gpu, host: {cpu: toy-cpu}}")["node"]
    assert node["gpu"]["memory"] == "16 GiB"
    assert node["host"]["cpu"]["socket_link"]["name"] == "wire"  # a reference inside a part


def test_a_part_keeps_the_places_of_its_own_file(library: Path) -> None:
    document = resolved(library, "name: mine\nnode: {gpu: toy-gpu}")
    assert document.mark(("groups", 0, "node", "gpu", "memory")).file.endswith("toy-gpu.yaml")
    assert document.mark(("groups", 0, "node", "gpu", "memory")).line == 4


def test_text_of_a_source_is_no_reference(library: Path) -> None:
    node = group(library, "name: mine\nnode: {topology: {pcie: wire, source: {pcie: a datasheet}}}")["node"]
    assert node["topology"]["source"] == {"pcie": "a datasheet"}


def test_own_values_win_over_what_a_block_extends(library: Path) -> None:
    node = group(library, "name: mine\nnode: {gpu: {extends: toy-gpu, memory: 32 GiB, peak: {fp16: 20 TFLOP/s}}}")["node"]
    assert (node["gpu"]["memory"], node["gpu"]["name"]) == ("32 GiB", "Toy-GPU")
    assert node["gpu"]["peak"] == {"fp32": "10 TFLOP/s", "fp16": "20 TFLOP/s"}
    assert "extends" not in node["gpu"]


def test_a_machine_extends_a_machine(library: Path) -> None:
    value = resolved(library, "extends: toy\nnode: {nic: {bandwidth: 1 Gbps}, storage: null, topology: {nvlink: null}}").value
    node = value["groups"][0]["node"]
    assert node["nic"] == {"bandwidth": "1 Gbps", "transport": node["nic"]["transport"], "source": "tests"}
    assert "storage" not in node
    assert "nvlink" not in node["topology"]
    assert value["groups"][0]["price"]["on_demand"] == "3 USD/h"
    assert value["name"] == "mine"  # the file's, not the extended one's


def test_a_new_part_replaces_the_extended_one_whole(library: Path) -> None:
    other = (library / "hardware/parts/gpus/toy-gpu.yaml").read_text().replace("name: Toy-GPU", "name: Other").replace("context_", "#")
    (library / "hardware/parts/gpus/other.yaml").write_text(other)
    gpu = group(library, "extends: toy\nnode: {gpu: {extends: other, memory: 1 GiB}}")["node"]["gpu"]
    assert (gpu["name"], gpu["memory"], "context_memory" in gpu) == ("Other", "1 GiB", False)


def test_aliases_are_not_inherited(library: Path) -> None:
    (library / "hardware/toy.yaml").write_text("aliases: [nickname]\n" + (library / "hardware/toy.yaml").read_text())
    assert "aliases" not in resolved(library, "extends: toy").value


def test_a_cluster_takes_node_and_price_of_a_machine(library: Path) -> None:
    text = "name: mine\ngroups: [{node: toy, count: 4}, {node: {extends: toy, nic: {count: 1}}}, {node: toy, price: null}]"
    groups = [group(library, text, index) for index in range(3)]
    assert [entry["node"]["gpu_count"] for entry in groups] == [2, 2, 2]
    assert [entry["price"] and entry["price"]["on_demand"] for entry in groups] == ["3 USD/h", "3 USD/h", None]
    assert groups[0]["count"] == 4


def test_a_single_group_and_a_node_at_the_top_are_the_same(library: Path) -> None:
    single = "name: toy\nprovider: nobody\ngroups: [{node: toy}]\n"
    (library / "hardware/grouped.yaml").write_text(single)
    assert load_hardware("grouped").spec == load_hardware("toy").spec
    assert group(library, "extends: grouped\nnode: {gpu_count: 1}")["node"]["gpu_count"] == 1
    assert [entry["count"] for entry in resolved(library, "extends: toy\ngroups: [{node: toy, count: 2}]").value["groups"]] == [2]


PROBLEMS = {
    "name: mine\nnode: {gpu: V1000, host: {cpu: toycpu}}": [
        "2:8: node.gpu: V1000 is not in the catalog (hardware/parts/gpus/); known: toy-gpu",
        "2:27: node.host.cpu: toycpu is not in the catalog (hardware/parts/cpus/); did you mean toy-cpu?",
    ],
    "name: mine\ngroups: [{node: tay}]": [
        "2:11: groups.0.node: tay is not in the catalog (hardware/); did you mean toy?",
    ],
    "name: mine\nnode: {gpu: {extends: [toy-gpu]}}": ["2:14: node.gpu.extends: write the name of one file in hardware/parts/gpus/"],
    "extends: 3": ["1:1: extends: write the name of one file in hardware/"],
    "extends: nothing": ["1:1: extends: nothing is not in the catalog (hardware/); known: toy, two"],
    "extends: mine.yaml": ["1:1: extends: mine.yaml refers back to itself; a file cannot take its parts from itself"],
    "name: mine\nnode: mine.yaml": ["2:1: node: mine.yaml refers back to itself; a file cannot take its parts from itself"],
    "name: mine\ngroups: [{node: two}]": ["2:11: groups.0.node: two has no single 'node' to use"],
    "name: mine\nnode: toy\ngroups: []": ["2:1: node: cannot be combined with 'groups'; write one of the two"],
    "extends: two\nnode: {gpu_count: 1}": [
        "2:1: node: cannot be combined with 'groups'; the machine that this extends has 2; {} keeps one as it is: groups: [{node: ...}, {}]"
    ],
    "extends: two\nprice: {date: 2026-07-20, source: tests}": [
        "2:1: price: cannot be combined with 'groups'; write it in each group: groups: [{node: ..., count: ..., price: ...}]"
    ],
    "- a": ["1:1: this is a list or a single value; write a block of keys, such as 'name: ...'"],
}


@pytest.mark.parametrize("text", PROBLEMS, ids=range(len(PROBLEMS)))
def test_references_that_lead_nowhere(text: str, library: Path) -> None:
    (library / "hardware/two.yaml").write_text("name: two\ngroups: [{node: toy}, {node: toy}]\n")
    assert problems(library, text) == PROBLEMS[text]


def test_a_part_of_a_group_may_be_overridden(library: Path) -> None:
    """A group that leaves out its node, or a part of it, takes that from the same group; a node of its own, or a name, replaces it."""
    (library / "hardware/four.yaml").write_text("name: four\ngroups: [{node: toy, count: 4}]\n")
    base = {key: value for key, value in group(library, "extends: four").items() if key != "price"}  # which other GPUs do not keep
    for text in ("node: {gpu_count: 1}", "groups: [{node: {gpu_count: 1}}]"):
        assert group(library, f"extends: four\n{text}") == {**base, "node": {**base["node"], "gpu_count": 1}}
    assert group(library, "extends: toy\ngroups: [{node: {gpu_count: 1}, count: 3}]")["count"] == 3
    (library / "hardware/pair.yaml").write_text("name: pair\ngroups: [{node: toy, count: 4}, {node: toy, count: 2}]\n")
    kept = resolved(library, "extends: pair\ngroups: [{}, {node: {gpu_count: 1}}]").value["groups"]
    before = resolved(library, "extends: pair").value["groups"]
    assert kept == [before[0], {"node": {**before[1]["node"], "gpu_count": 1}, "count": 2}]
    assert "count" not in group(library, "extends: four\ngroups: [{node: toy}]")  # a whole node: a group of its own


def test_a_file_may_extend_what_the_catalog_has_under_its_own_name(library: Path, tmp_path: Path) -> None:
    own = tmp_path / "elsewhere"
    own.mkdir()
    (own / "toy.yaml").write_text("extends: toy\nnode: {gpu_count: 1}\n")
    resolver = Resolver()
    document = resolver.finish(resolver.open(own / "toy.yaml", Hardware), Hardware)
    assert not resolver.problems and document.value["groups"][0]["node"]["gpu_count"] == 1


def test_a_circle_of_files_ends(library: Path) -> None:
    (library / "hardware/a.yaml").write_text("extends: b\n")
    (library / "hardware/b.yaml").write_text("extends: a\n")
    (library / "hardware/c.yaml").write_text("name: c\nnode: d\n")
    (library / "hardware/d.yaml").write_text("name: d\nnode: c\n")
    for name in "ac":
        with pytest.raises(SpecError, match="refers back to itself"):
            load_hardware(name)


def test_a_broken_part_used_thrice_is_told_once_at_its_own_place(library: Path) -> None:
    part = library / "hardware/parts/transports/hop.yaml"
    part.write_text("name: [")
    with pytest.raises(SpecError) as caught:
        load_hardware("toy")
    assert caught.value.problems == [f"{part}:1:8: not valid YAML: did not find expected node content"]


def test_shared_files_are_never_changed(library: Path) -> None:
    before = load_hardware("toy")
    load_hardware("toy", ["node.gpu.memory=1 GiB", "node.topology.sockets.0.gpus=[1, 0]", "groups.0.count=3", "price=null"])
    (library / "hardware/child.yaml").write_text("extends: toy\nnode: {gpu: {memory: 1 GiB}, nic: {count: 2}}\n")
    load_hardware("child")
    assert load_hardware("toy").sha256 == before.sha256


def test_only_the_head_of_a_model_is_read_to_list_it(library: Path) -> None:
    path = library / "workloads/models/toy-net.yaml"
    path.write_text(path.read_text().replace("{name: one", "] {"))
    resolver = Resolver(heads_only=True)
    document = resolver.finish(resolver.open(library / "workloads/toy-job.yaml", Workload), Workload)
    assert document.value["model"] == {"name": "toy-net", "parameters": 110, "input": "1 KB", "source": "tests"}
    with pytest.raises(SpecError):
        load_workload("toy-job")


def test_a_machine_with_other_gpus_does_not_keep_the_price(library: Path) -> None:
    """A cloud's price for a machine does not apply to a different one: by hand."""
    for changed in ("extends: toy\nnode: {gpu_count: 1}", "name: mine\ngroups: [{node: {extends: toy, gpu_count: 1}}]"):
        assert "price" not in group(library, changed)
    assert group(library, "extends: toy\nnode: {gpu_count: 1}\nprice: {on_demand: 1 USD/h, date: 2026-01-01, source: x}")["price"]


def test_a_changed_machine_says_from_which_it_copied_its_price(library: Path) -> None:
    """By hand: an unchanged machine keeps its own price; one with another NIC copies that of the machine that it extends."""
    toy = group(library, "extends: toy")["price"]
    for same in ("name: mine\nnode: toy", "name: mine\ngroups: [{node: {extends: toy}}]", "extends: toy\nfabric: {latency: 1 us}"):
        assert group(library, same)["price"] == toy
    copied = {**toy, "copied_from": "toy"}
    nic = "{nic: {bandwidth: 1 Gbps}}"
    for changed in (
        f"extends: toy\nnode: {nic}",
        f"extends: toy\ngroups: [{{node: {nic}, count: 2}}]",
        "name: mine\ngroups: [{node: {extends: toy, nic: {bandwidth: 1 Gbps}}}]",
    ):
        assert group(library, changed)["price"] == copied
    (library / "hardware/ours.yaml").write_text(f"extends: toy\nnode: {nic}\n")
    for again in ("extends: ours", "extends: ours\nnode: {storage: null}", "name: mine\nnode: ours"):
        assert group(library, again)["price"] == copied


def test_an_own_price_replaces_the_one_of_the_extended_machine(library: Path) -> None:
    """By hand: nothing of a cloud's price (its date, its spot price, its region) applies to a price of one's own."""
    own = "price: {on_demand: 1 USD/h, source: our contract}"
    for changed in (f"extends: toy\n{own}", f"extends: toy\nnode: {{nic: {{count: 4}}}}\n{own}", f"extends: toy\ngroups: [{{{own}}}]"):
        assert group(library, changed)["price"] == {"on_demand": "1 USD/h", "source": "our contract"}
    assert "price" not in group(library, "extends: toy\nprice: null")


def test_a_volume_with_its_own_name_takes_nothing_over(library: Path) -> None:
    """By hand: one file server has not the number of disks of the machine, whose own disk keeps what is not changed."""
    volumes = [
        group(library, f"extends: toy\nnode: {{storage: {{volume: {{{text}}}}}}}")["node"]["storage"]["volume"]
        for text in ("name: nfs, size: 1 TiB", "size: 1 TiB")
    ]
    assert volumes[0] == {"name": "nfs", "size": "1 TiB"}
    assert volumes[1]["size"] == "1 TiB" and volumes[1]["name"] == "disk" and "bandwidth" in volumes[1]


def test_a_file_without_a_name_has_that_of_the_file(library: Path) -> None:
    assert resolved(library, "node: {gpu: toy-gpu}").value["name"] == "mine"
