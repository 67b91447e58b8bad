"""Oracles: the catalog's own names and machines, and what the papers of models call them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration.catalog_names import PCIE_BOX, with_catalog_names
from calibration.questions import Folders, question
from sim.spec.yaml import SpecError
from tests.calibration.runs import record


@pytest.mark.parametrize(
    ("name", "gpus", "meant"),
    [("MI300X", 8, "mi300x-platform"), ("8x B200", 8, "hgx-b200"), ("NVIDIA H200", 8, "hgx-h200"), ("A100-SXM4-80GB", 8, "dgx-a100-80gb"),
     ("4x B200", 4, "hgx-b200"), ("A100", 8, "dgx-a100-80gb"), ("T4", 4, "g4dn.12xlarge"), ("Tesla T4", 1, "g4dn.xlarge"),
     ("L4", 4, "g2-standard-48"), ("L4", 8, "g2-standard-96"), ("Tesla K80", 8, "p2.8xlarge"), ("A10", 1, "gpu_1x_a10"),
     ("A100 80GB PCIe", 2, "nc48ads_a100_v4"), ("NVIDIA H100 80GB HBM3", 8, "hgx-h100"), ("H200 141GB", 8, "hgx-h200"),
     ("V100 32GB", 8, "nd40rs_v2"), ("V100 32GB", 16, "dgx-2"),
     ("V100 16GB", 8, "dgx-1-v100"), ("A100 (40GB)", 8, "dgx-a100"), ("H100 NVL", 2, "nc80adis_h100_v5"),
     ("NVIDIA RTX 6000 Ada Generation", 2, PCIE_BOX), ("n1-standard-16 with 8x V100", 8, "dgx-1-v100"),
     ("Lambda 8x RTX 6000 Ada", 8, PCIE_BOX),
     ("A10", 4, PCIE_BOX), ("GeForce RTX 4090", 4, PCIE_BOX), ("P100", 4, PCIE_BOX), ("Quadro RTX 8000", 8, PCIE_BOX)],
)  # fmt: skip
def test_a_gpu_means_a_machine_that_has_enough_of_them(name: str, gpus: int, meant: str) -> None:
    """It is described, has this GPU, and at least as many; a note says that host and network are assumed unless only one machine has it."""
    ((row,), (note,)) = with_catalog_names([replace(record(), hardware=name, gpus_per_node=gpus)], Folders())
    assert row.hardware == meant and note.startswith(f"hardware '{name}' was read as {meant}")
    described = question(row)
    assert described.job.ranks == gpus
    wanted = "".join(each for each in name.lower() if each.isalnum()).removeprefix("geforce").removeprefix("tesla").removeprefix("nvidia")
    part = "".join(each for each in described.gpu.name.lower() if each.isalnum())
    assert wanted.split("x", 1)[-1][:3] in part


def test_a_gpu_without_description_is_named_as_such() -> None:
    """No machine with a similar name is suggested: it would have another GPU."""
    ((row,), notes) = with_catalog_names([replace(record(), hardware="", gpu="RTX 5080", gpus_per_node=4)], Folders())
    assert not notes
    with pytest.raises(SpecError, match=r"no description of the GPU 'RTX 5080'.*--hardware-dir") as raised:
        question(row)
    assert "did you mean" not in str(raised.value)


def test_a_machine_of_your_own_may_be_called_by_the_name_in_its_file(tmp_path: Path) -> None:
    """A note says which file was read; a name that two files have means neither."""
    for folder, files in ((one := tmp_path / "one", ("a",)), (two := tmp_path / "two", ("a", "b"))):
        folder.mkdir()
        for name in files:
            (folder / f"{name}.yaml").write_text("extends: p4d.24xlarge\nname: my-p4d\n")
    ((row,), notes) = with_catalog_names([replace(record(), hardware="my-p4d")], Folders(one))
    assert row.hardware == "a" and notes == ["hardware 'my-p4d' was read as a"]
    assert question(row, Folders(one)).gpu.name == "A100-SXM4-40GB"
    ((row,), notes) = with_catalog_names([replace(record(), hardware="my-p4d")], Folders(two))
    assert row.hardware == "my-p4d" and not notes


@pytest.mark.parametrize("name", ["my-a100-cluster", "TITAN X", "DGX", "p100-25g", "Gaudi2", ""])
def test_what_is_no_gpu_or_two_gpus_stays(name: str) -> None:
    """TITAN X is the name of a Maxwell and of a Pascal card."""
    ((row,), notes) = with_catalog_names([replace(record(), hardware=name)], Folders())
    assert row.hardware == name and not notes


@pytest.mark.parametrize(
    ("machine", "gpu", "meant", "part"),
    [("DGX A100", "A100 80GB", "dgx-a100", "A100-SXM4-80GB"), ("DGX A100", "A100", "dgx-a100", "A100-SXM4-80GB"),
     ("p3.16xlarge", "V100 16GB", "p3.16xlarge", "V100-SXM2-16GB"), ("DGX-1", "V100 16GB", "dgx-1-v100", "V100-SXM2-16GB"),
     ("(unspecified server)", "8x A100-SXM4-40GB", "dgx-a100", "A100-SXM4-40GB"), ("", "4x L4", "g2-standard-48", "L4"),
     ("DGX-1 (8x V100 32GB)", "", "dgx-1-v100", "V100-SXM2-32GB"), ("DGX-1", "V100 32GB", "dgx-1-v100", "V100-SXM2-32GB"),
     ("DGX-1", "8x Tesla P100-SXM2-16GB", "dgx-1-p100", "P100-SXM2-16GB"), ("HGX", "H100", "hgx-h100", "H100-SXM5-80GB"),
     ("p3.16xlarge", "some GPU", "p3.16xlarge", "V100-SXM2-16GB")],
)  # fmt: skip
def test_a_gpu_beside_a_machine_is_the_machines(machine: str, gpu: str, meant: str, part: str) -> None:
    """It replaces another GPU of the machine; without a known machine, one with this GPU is assumed. A note says so."""
    ((row,), notes) = with_catalog_names([replace(record(), hardware=machine, gpu=gpu)], Folders())
    described = question(row)
    assert (row.hardware, described.gpu.name) == (meant, part)
    assert bool(notes) == (machine != meant or bool(row.overrides))


@pytest.mark.parametrize(
    ("columns", "bandwidth", "transport"),
    [(dict(hardware="8x RTX 3090", network="100GbE"), 100, "tcp"), (dict(hardware="A40", gpus_per_node=4, network="100GbE"), 100, "tcp"),
     (dict(hardware="A100-SXM4-40GB", network="4x HDR"), 100, "infiniband"),
     (dict(hardware="A100-SXM4-40GB", network="HDR"), 200, "infiniband"),
     (dict(hardware="8x RTX 4090", network="InfiniBand HDR"), 200, "infiniband"),
     (dict(hardware="A40", gpus_per_node=4, network="HDR InfiniBand"), 200, "infiniband"),
     (dict(hardware="our lab", gpu="8x A100 40GB", network="RoCE 8x 200G"), 200, "roce"),
     (dict(hardware="8x H100", network="NVLink"), 400, "infiniband"),
     (dict(hardware="p3.16xlarge", network="100 Gbps InfiniBand"), 25, "tcp"),
     (dict(hardware="8x RTX 3090", network="100GbE", nodes=1), 10, "tcp")],
)  # fmt: skip
def test_the_network_of_an_assumed_machine_is_that_of_the_row(columns: dict[str, Any], bandwidth: float, transport: str) -> None:
    """In Gbit/s of each of the machine's NICs, of which a box of PCIe cards has one. A provider's machine has its own network, and one node
    needs none."""
    ((row,), notes) = with_catalog_names([record(**({"nodes": 2, "gpus_per_node": 8} | columns))], Folders())
    nic = question(row).hardware.groups[0].node.nic
    assert nic is not None and (nic.bandwidth * 8 / 1e9, nic.transport.name) == (bandwidth, transport)
    assert any(f"of {transport} by" in note for note in notes) == ("node.nic" in row.overrides)


def test_the_number_before_a_gpu_is_that_of_a_node_unless_a_column_has_it() -> None:
    rows = [replace(record(), hardware="4x L4", nodes=2), replace(record(), hardware="4x L4", total_gpus=2)]
    renamed, _ = with_catalog_names(rows, Folders())
    assert [row.gpus_per_node for row in renamed] == [4, None]


@pytest.mark.parametrize(
    ("name", "sequence", "meant"),
    [("BERT-Large", 128, "bert-large-seq128"), ("bert-large-uncased", 512, "bert-large-seq512"), ("bert_base", None, "bert-base-seq128"),
     ("bert-base-uncased", 384, "bert-base-seq384"), ("bert-large-seq384", 128, "bert-large-seq384"), ("Inception3", None, "inception_v3"),
     ("GNMT v2", None, "gnmt"), ("SSD", None, "ssd300"), ("ResNet", None, "ResNet"), ("RN50v1.5", None, "resnet50"),
     ("resnet50_v1", None, "resnet50"), ("ResNet-50 v1.5 ImageNet 224", None, "resnet50"), ("ResNet-50 (torchvision)", None, "resnet50"),
     ("ResNet-18 CIFAR-10", None, "cifar10-resnet18"), ("BERT-base pretrain seq128", None, "bert-base-seq128"),
     ("BERT-large SQuAD finetune", 384, "bert-large-seq384"), ("bert-large-uncased-whole-word-masking", 512, "bert-large-seq512"),
     ("google-bert/bert-base-uncased", 512, "bert-base-seq512"), ("vit_base_patch16_224", None, "vit_b_16"), ("ViT-B/16", None, "vit_b_16"),
     ("torchvision.models.resnet50", None, "resnet50"), ("resnet50.a1_in1k", None, "resnet50"), ("tv_resnet34", None, "resnet34"),
     ("tf_efficientnet_b4.ns_jft_in1k", None, "efficientnet_b4"), ("vit_base_patch16_224.augreg_in21k", None, "vit_b_16"),
     ("deit_base_patch16_224", None, "vit_b_16"), ("mobilenetv2_100", None, "mobilenet_v2"), ("BERT-L", 512, "bert-large-seq512"),
     ("mobilenetv3_large_100", None, "mobilenet_v3_large"), ("mobilenetv2_140", None, "mobilenetv2_140"), ("resnet50d", None, "resnet50d"),
     ("RoBERTa-large", 128, "roberta-large-seq128"), ("ResNet-50 v2", None, "ResNet-50 v2"), ("MaskRCNN", None, "MaskRCNN")],
)  # fmt: skip
def test_models_by_other_names(name: str, sequence: int | None, meant: str) -> None:
    """A length in the name itself is never changed."""
    ((row,), notes) = with_catalog_names([replace(record(), workload=name, sequence=sequence)], Folders())
    assert (row.workload, bool(notes)) == (meant, name != meant)


@pytest.mark.parametrize(
    ("name", "sequence", "note"),
    [
        ("BERT-Large", None, "workload 'BERT-Large' was read as bert-large-seq384; assumed: 384 tokens per sample (a column sequence"),
        ("BERT-Base", None, "workload 'BERT-Base' was read as bert-base-seq128; assumed: 128 tokens per sample (a column sequence"),
        ("BERT-Large", 384, "workload 'BERT-Large' was read as bert-large-seq384"),
        ("bert-large-seq384", None, ""),
    ],
)
def test_a_note_says_which_length_is_assumed(name: str, sequence: int | None, note: str) -> None:
    """Oracle: the aliases of the catalog's files, and the lengths in their names."""
    _, notes = with_catalog_names([replace(record(), workload=name, sequence=sequence)], Folders())
    said = "".join(each for each in notes if each.startswith("workload"))
    assert said.startswith(note) and ("assumed" in said) == ("assumed" in note) and bool(said) == bool(note)


def test_a_length_that_the_workload_has_by_its_name_is_no_contradiction() -> None:
    ((row,), _) = with_catalog_names(
        [replace(record(), workload="BERT", note="raw batch '8'; Sequence length=512; commit de664900")], Folders()
    )
    assert row.workload == "bert-large-seq512"
    assert question(replace(record(), workload="bert-large-seq384", sequence=384)).workload.name == "bert-large-seq384"


@pytest.mark.parametrize(
    ("columns", "assumed", "placement"),
    [({}, "each node also runs a parameter server", "colocated"), ({"hardware": "cm-dare-p100", "nodes": 2}, "", "group"),
     ({"overrides": "training.stack.servers.placement=colocated; training.stack.servers.count=1"}, "", "colocated")],
)  # fmt: skip
def test_servers_run_on_the_workers_if_no_node_is_theirs(columns: dict[str, Any], assumed: str, placement: str) -> None:
    """On two nodes two servers, as many as workers; what a row says itself is not assumed."""
    described = question(record(**({"stack": "tf-parameter-server-sync", "nodes": 2, "global_batch": 64, "precision": "fp32"} | columns)))
    exchange: Any = described.workload.training.stack.exchange
    assert assumed in described.assumed and bool(assumed) == bool(described.assumed)
    assert exchange.servers.placement == placement and (not assumed or exchange.servers.count == 2)
    assert described.samples == 64


def test_a_blank_input_on_a_machine_without_storage_reads_no_data() -> None:
    blank, stated = (question(record(hardware="mg-wfbp-56g", input=text)) for text in (None, "real"))
    assert (blank.workload.input.loader, stated.workload.input.loader) == ("synthetic", "pytorch")
    assert "no storage" in blank.assumed and not stated.assumed


def test_names_that_differ_in_spelling_only_are_the_catalogs(tmp_path: Path) -> None:
    """No other machine or model has the same letters and digits; what is in the catalog, or in no catalog, stays."""
    (tmp_path / "my-box.yaml").write_text("extends: p3.16xlarge\nname: my-box\n")
    pairs = {
        ("DGX A100 80GB", "ResNet-50 v1.5"): ("dgx-a100-80gb", "resnet50"), ("AWS p3.16xlarge", "VGG-16"): ("p3.16xlarge", "vgg16"),
        ("DGX-A100", "EfficientNet-B0"): ("dgx-a100", "efficientnet_b0"), ("My Box", "BERT-Larger"): ("my-box", "BERT-Larger"),
        ("p4d", "ResNet"): ("p4d", "ResNet"),
    }  # fmt: skip
    rows = [replace(record(), hardware=hardware, workload=workload) for hardware, workload in pairs]
    renamed, notes = with_catalog_names(rows, Folders(hardware=tmp_path))
    assert [(row.hardware, row.workload) for row in renamed] == list(pairs.values())
    assert "hardware 'DGX A100 80GB' was read as dgx-a100-80gb" in notes and "workload 'VGG-16' was read as vgg16" in notes
    assert not any("p4d" in note or "BERT" in note or "DGX-A100" in note for note in notes)
