"""Oracle: a table of bad inputs with the exact message each must give; positions are counted in the text itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec import schema
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from tests.spec.documents import MACHINE

pytestmark = pytest.mark.usefixtures("toys")


def complaint(folder: Path, text: str) -> list[str]:
    path = folder / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_hardware(str(path))
    return [problem.replace(str(path), "mine.yaml") for problem in caught.value.problems]


BANDWIDTHS = "write for example '25 Gbps' (units: Mbps, Gbps are bits, MB/s, GB/s, MiB/s, GiB/s bytes)"
HOST = "write a block (cpu, sockets, physical_cores, vcpus, memory, source)"
CPU = "write a block (name, vendor, clock, speed, smt_gain, memory_bandwidth, socket_link, source ...)"
SOURCE = "state where the numbers come from: one text, or one text per key of the block ('*' for the rest)"
NIC = "nic: {bandwidth: 25 Gbps"
UNLIKE = (
    "found a list; all GPUs of a node are of the same model: write one name, and describe different GPUs as groups of nodes, for example "
    "'groups: [{node: {extends: box, gpu: RTX4090, gpu_count: 1}, count: 6}, {node: {extends: box, gpu: RTX3090, gpu_count: 1}, count: 6}]'"
)
EACH = {
    "misspelled key": ("provider:", "prvider:", "2:1: prvider: unknown key; did you mean 'provider'?"),
    "misspelled key inside": (NIC, "nic: {bandwdth: 25 Gbps", None),
    "misspelled key at the top": ("price:", "prise:", "17:1: prise: unknown key; did you mean 'price'?"),
    "unknown key": (
        "provider:",
        "zzz:",
        "2:1: zzz: unknown key; valid keys: aliases, description, fabric, groups, hypothetical, name, node, note, price, provider, source, "
        "trays",
    ),
    "a key of a block below": ("provider:", "nic:", "2:1: nic: unknown key; did you mean 'node.nic'?"),
    "a key of a block far below": (
        "provider:",
        "physical_cores:",
        "2:1: physical_cores: unknown key; did you mean 'node.host.physical_cores'?",
    ),
    "nodes at the top": (
        "provider:",
        "count:",
        "2:1: count: unknown key; set the number of nodes with --nodes N, or in a group: 'groups: [{node: hgx-h100, count: 8}]'",
    ),
    "bare number": (NIC, "nic: {bandwidth: 25", f"12:9: node.nic.bandwidth: the number 25 has no unit; {BANDWIDTHS}"),
    "wrong unit": (NIC, "nic: {bandwidth: 25 GB", f"12:9: node.nic.bandwidth: 'GB' is a unit of size, expected a bandwidth; {BANDWIDTHS}"),
    "unknown unit": (
        NIC,
        "nic: {bandwidth: 25 gbps",
        f"12:9: node.nic.bandwidth: unknown unit 'gbps' (did you mean Gbps?), expected a bandwidth; {BANDWIDTHS}",
    ),
    "negative": (NIC, "nic: {bandwidth: -25 Gbps", "12:9: node.nic.bandwidth: '-25 Gbps' is out of range; write a bandwidth above zero"),
    "duplicate key": (
        NIC,
        "nic: {bandwidth: 25 Gbps, bandwidth: 1 Gbps",
        "12:29: node.nic.bandwidth: appears twice, first at line 12; write a key once",
    ),
    "number for a block": (
        "price: {",
        "price: 4 #",
        "17:1: price: found 4; write a block (on_demand, spot, date, spot_date, region, cheapest, copied_from, source)",
    ),
    "text for a block": ("host: {", "host: much #", f"11:3: node.host: found 'much'; {HOST}"),
    "list for a block": ("host: {", "host: [] #", f"11:3: node.host: found a list; {HOST}"),
    "nothing for a block": ("host: {", "host: #", f"11:3: node.host: found nothing; {HOST}"),
    "list of GPUs": (
        "gpu: Toy-GPU",
        "gpu: [Toy-GPU, Toy-GPU]",
        f"4:3: node.gpu: {UNLIKE}",
    ),
    "memory of a node": ("gpu_count: 2", "gpu_count: 2\n  memory: 64 GiB", "6:3: node.memory: unknown key; did you mean 'host.memory'?"),
    "number for a part": ("gpu: Toy-GPU", "gpu: 4", None),
    "unknown part": (
        "gpu: Toy-GPU",
        "gpu: Toy-GPX",
        "4:3: node.gpu: Toy-GPX is not in the catalog (hardware/parts/gpus/); did you mean toy-gpu?",
    ),
    "missing block": ("  gpu_count: 2\n", "", "3:1: node.gpu_count: is missing; write a whole number, zero or more"),
    "no CPU": (
        "cpu: toy-cpu, ",
        "",
        f"11:3: node.host.cpu: is missing; {CPU}, or the name of a file in hardware/parts/cpus/ ('python -m sim list cpus' lists them)",
    ),
    "list item": (
        "gpus: [0, 1]",
        "gpus: [0, x]",
        "9:26: node.topology.sockets.0.gpus.1: 'x' is not a whole number; write a whole number, zero or more",
    ),
    "block for a list": (
        "sockets: [",
        "sockets: {} #",
        "9:5: node.topology.sockets: found a block of keys; write a list, each item a block (gpus, nics)",
    ),
    "dict value": (
        "{0-1: 1}",
        "{0-1: x}",
        "7:34: node.topology.nvlink.pairs.0-1: 'x' is not a whole number; write a whole number, 1 or more",
    ),
    "choice": (
        "pcie: wire",
        "pcie: wire\n    peer_to_peer: near",
        "9:5: node.topology.peer_to_peer: found 'near'; write one of none, pix, pxb, phb, sys",
    ),
    "boolean": (NIC, "nic: {gpudirect: 3, bandwidth: 25 Gbps", "12:9: node.nic.gpudirect: found 3; write true or false"),
    "number for text": ("provider: nobody", "provider: 7", "2:1: provider: found 7; write text, in quotes"),
    "rule of a block": ("vcpus: 8", "vcpus: 2", "11:3: node.host: vcpus (2) are hardware threads, at least one per physical core (4)"),
    "yes": (
        NIC,
        "nic: {gpudirect: yes, bandwidth: 25 Gbps",
        "12:20: node.nic.gpudirect: 'yes' is a boolean to some readers of YAML and text to others; write true, false or 'yes' in quotes",
    ),
    "empty source": ("transport: hop, source: tests", "transport: hop, source: ''", f"12:45: node.nic.source: {SOURCE}"),
    "not finite": (NIC, "nic: {bandwidth: 1e999 Gbps", "12:9: node.nic.bandwidth: '1e999 Gbps' is not a finite number"),
    "empty file": (MACHINE, "", ": file is empty; write a description, for example the line 'extends: p3.8xlarge' or 'extends: resnet50'"),
    "another kind": (MACHINE, "model: x\ntraining: {}\n", "1:1: this is a workload file; expected a hardware file"),
    "no machine": (
        MACHINE,
        "name: x\nfabric: {}\n",
        "1:1: node: is missing; write the block of one machine, 'groups', a list of machines, or 'extends: p3.8xlarge' and what differs",
    ),
    "no group": (MACHINE, "name: x\ngroups: []\n", "2:1: groups: is empty; write at least one item"),
}


def test_keys_of_a_node_at_the_top_of_a_file_are_told_their_place(library: Path) -> None:
    """It had been called a file of lifetimes, which has ``gpus`` too, and `check` listed all that such a file needs."""
    missing = (
        "mine.yaml:1:1: node: is missing; write the block of one machine, 'groups', a list of machines, or 'extends: p3.8xlarge' and what"
    )
    gpus, gpu = ("gpus: unknown key; did you mean 'node.gpu_count'?", "gpu: unknown key; did you mean 'node.gpu'?")
    assert complaint(library, "name: x\ngpus: 4\n") == [f"{missing} differs", f"mine.yaml:2:1: {gpus}"]
    assert complaint(library, "name: x\ngpu: V100\ngpus: 4\n") == [f"{missing} differs", f"mine.yaml:2:1: {gpu}", f"mine.yaml:3:1: {gpus}"]
    assert schema.kind_of({"name": 1, "gpus": 1}) is schema.kind_of({"gpu": 1, "gpus": 1}) is schema.KINDS["hardware"]
    lifetimes = ("name", "gpus", "provider", "revoked", "survived")
    assert schema.kind_of(dict.fromkeys(lifetimes, 1)) is schema.KINDS["lifetimes"]


@pytest.mark.parametrize("name", [name for name, (_, _, message) in EACH.items() if message])
def test_one_slip_gives_one_message(name: str, library: Path) -> None:
    old, new, message = EACH[name]
    assert MACHINE.count(old) == 1
    assert complaint(library, MACHINE.replace(old, new)) == [f"mine.yaml:{message}".replace("::", ":")]


def test_a_misspelled_required_key_is_missing_too(library: Path) -> None:
    assert complaint(library, MACHINE.replace(NIC, "nic: {bandwdth: 25 Gbps")) == [
        f"mine.yaml:12:3: node.nic.bandwidth: is missing; write a bandwidth above zero, {BANDWIDTHS.removeprefix('write ')}",
        "mine.yaml:12:9: node.nic.bandwdth: unknown key; did you mean 'bandwidth'?",
    ]


def test_a_number_for_a_part_names_its_keys_and_its_folder(library: Path) -> None:
    [message] = complaint(library, MACHINE.replace("gpu: Toy-GPU", "gpu: 4"))
    assert message.startswith("mine.yaml:4:3: node.gpu: found 4; write a block (name, architecture, compute_capability, memory, ")
    assert message.endswith(" ...), or the name of a file in hardware/parts/gpus/")


def test_a_machine_of_which_much_is_missing_may_extend_another(library: Path) -> None:
    messages = complaint(library, "name: mine\nnode: {gpu_count: 4, gpu: Toy-GPU}\n")
    assert len(messages) >= 3 and all(" is missing; write " in message for message in messages)
    assert [message for message in messages if "'extends: p4d.24xlarge'" in message] == messages[-1:]


def test_a_part_of_which_much_is_missing_may_extend_another_part(library: Path) -> None:
    # A machine that extends another needs no machine to extend, but its disk does.
    problems = complaint(library, "extends: toy\nname: mine\nnode: {storage: {volume: {name: ours, size: 2 TB, bandwidth: 900 MB/s}}}\n")
    assert problems[-1].endswith("; or write 'extends:' there with one of 'python -m sim list volumes', and then only what differs from it")


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file(library: Path) -> None:
    text = MACHINE.replace("provider", "prvider").replace("gpu_count: 2", "gpu_count: two").replace("64 GiB", "64").replace("3 USD/h", "3")
    assert [problem.split(" ")[:2] for problem in complaint(library, text)] == [
        ["mine.yaml:2:1:", "prvider:"],
        ["mine.yaml:5:3:", "node.gpu_count:"],
        [f"mine.yaml:11:{MACHINE.splitlines()[10].index('memory') + 1}:", "node.host.memory:"],
        ["mine.yaml:17:9:", "price.on_demand:"],
    ]


def test_the_spelling_of_groups_is_kept_where_the_user_wrote_groups(library: Path) -> None:
    assert complaint(library, "name: x\ngroups: [{node: {extends: toy, gpu_count: two}}]") == [
        "mine.yaml:2:32: groups.0.node.gpu_count: 'two' is not a whole number; write a whole number, zero or more"
    ]


def test_a_problem_in_a_part_has_the_place_of_the_part(library: Path) -> None:
    part = library / "hardware/parts/gpus/toy-gpu.yaml"
    part.write_text(part.read_text().replace("16 GiB", "16"))
    [message] = complaint(library, MACHINE)
    assert message.startswith(f"{part}:4:1: node.gpu.memory: the number 16 has no unit")


def test_keys_of_a_dict_are_known_too(library: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_hardware("toy", ["node.gpu.peak={fp31: 1 TFLOP/s}", "node.gpu.efficiency.convolution.fp32=0.5"])
    assert caught.value.problems == [
        "--set node.gpu.efficiency.convolution.fp32=0.5: node.gpu.efficiency.convolution: unknown key; did you mean 'conv'?",
        "--set node.gpu.peak={fp31: 1 TFLOP/s}: node.gpu.peak.fp31: unknown key; did you mean 'fp32'?",
    ]


def test_workloads_have_messages_too(library: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_workload("toy-job", ["training.batch=0", "input.loader=tfdata", "model.parameters=3", "training.optimizer=adam"])
    assert [problem.replace(str(library), "") for problem in caught.value.problems] == [
        "--set input.loader=tfdata: found 'tfdata'; write one of pytorch, dali_cpu, dali_gpu, synthetic",
        "--set training.batch=0: 0 is too small; write a whole number, 1 or more",
        "--set training.optimizer=adam: found 'adam'; write a block, such as {name: adam}",
        "/workloads/models/toy-net.yaml:1:1: model: the layers' gradients hold 110 elements, more than the model's 3 parameters; "
        "write parameters: 110",
    ]
