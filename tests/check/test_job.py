"""Oracle: counts of GPUs, bytes and precisions worked out by hand for the toy machine (2 GPUs, FP32 only, a disk of 1 TB)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.check import check_job, check_run, job_warnings
from sim.check.job import NEEDS
from sim.cluster.build import with_nodes
from sim.spec.hardware import Gpu
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError


def problems(hardware: tuple[str, ...] = (), workload: tuple[str, ...] = (), nodes: int | None = None, **job: Any) -> list[str]:
    machine, task = load_hardware("toy", hardware), load_workload("toy-job", workload)
    spec = machine.spec if nodes is None else with_nodes(machine.spec, nodes)
    return check_job(spec, task.spec, documents=(machine.document, task.document), **job)


def test_the_toy_job_runs_on_the_toy_machine() -> None:
    assert problems() == []
    assert problems(gpus=1) == problems(gpus=2) == problems(nodes=3, gpus=6) == []


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (
            {"gpus": 3},
            "--gpus 3: 1 x toy has 2 GPUs; write at most 2, or add --nodes 3 (1 of the 2 GPUs of each), or --nodes 2 and write 2 or 4 GPUs",
        ),
        (
            {"gpus": 9, "nodes": 2},
            "--gpus 9: 2 x toy have 4 GPUs; write at most 4, or add --nodes 9 (1 of the 2 GPUs of each), or --nodes 5 and write 5 or "
            "10 GPUs",
        ),
        ({"gpus": 4}, "--gpus 4: 1 x toy has 2 GPUs; write at most 2, or add --nodes 2"),
        ({"gpus": 512}, "--gpus 512: 1 x toy has 2 GPUs; write at most 2, or add --nodes 256"),
        ({"gpus": 0}, "--gpus 0: write 1 or more"),
    ],
)
def test_ranks_need_gpus(job: dict[str, Any], message: str) -> None:
    assert problems(**job) == [message]


def test_nodes_are_counted_by_groups_where_there_are_several(library: Path) -> None:
    (library / "hardware/two.yaml").write_text("name: two\ngroups: [{node: toy, count: 3}, {node: toy, role: server}]\n")
    machine, task = load_hardware("two").spec, load_workload("toy-job").spec
    assert check_job(machine, task, gpus=6) == []
    assert check_job(machine, task, gpus=7) == ["--gpus 7: 3 x two have 6 GPUs; write at most 6"]


def test_real_data_needs_a_disk() -> None:
    [message] = problems(hardware=("node.storage=null",))
    assert message == (
        "--set node.storage=null: is missing, but the loader 'pytorch' reads pictures from a disk; "
        "for example, write {volume: gp2, source: ...}, or --set input.loader=synthetic"
    )
    assert problems(hardware=("node.storage=null",), workload=("input.loader=synthetic",)) == []


@pytest.mark.parametrize(("precision", "unit"), NEEDS.items())
def test_a_precision_needs_its_units(precision: str, unit: str) -> None:
    setting = f"training.precision={precision}"
    assert problems(workload=(setting,)) == [
        f"--set {setting}: Toy-GPU has no {unit} units, which {precision} needs; write one of fp32, amp_fp16"
    ]
    assert problems(hardware=(f"node.gpu.peak.{unit}=20 TFLOP/s",), workload=(setting,)) == []


def test_products_need_a_curve(library: Path) -> None:
    """Without one they would take no time."""
    assert {layer.op for layer in load_workload("toy-job").spec.model.layers} >= {"gemm"}
    (library / "other.yaml").write_text("extends: toy\nname: other\nnode: {gpu: {efficiency: {gemm: null, rnn: {fp32: 0.5}}}}\n")
    [message] = check_job(load_hardware(str(library / "other.yaml")).spec, load_workload("toy-job").spec)
    assert message == "node.gpu.efficiency: has no curve for gemm, the class of 2 layers of toy-net; write gemm: ..."


def test_shapes_describe_matrix_products_but_no_convolutions(library: Path) -> None:
    hardware, workload = load_hardware("toy").spec, load_workload("toy-job").spec
    gpu = hardware.groups[0].node.gpu.model_copy(update={"kernels": object(), "efficiency": {}})
    node = hardware.groups[0].node.model_copy(update={"gpu": gpu})
    shaped = hardware.model_copy(update={"groups": (hardware.groups[0].model_copy(update={"node": node}),)})
    assert check_job(shaped, workload) == []
    layers = tuple(layer.model_copy(update={"op": "conv"}) for layer in workload.model.layers)
    convolved = workload.model_copy(update={"model": workload.model.model_copy(update={"layers": layers})})
    assert check_job(shaped, convolved) == ["node.gpu.efficiency: has no curve for conv, the class of 2 layers of toy-net; write conv: ..."]


def test_fp32_and_tf32_run_everywhere() -> None:
    assert problems(workload=("training.precision=tf32",)) == problems(workload=("training.precision=fp32",)) == []


def test_whoever_knows_memory_is_asked_once_per_kind_of_gpu(library: Path) -> None:
    (library / "hardware/two.yaml").write_text("name: two\ngroups: [{node: toy}, {node: toy}]\n")
    gpu_names = []

    def fit(gpu: Gpu, workload: Workload) -> str | None:
        gpu_names.append(gpu.name)
        return f"needs 99 GB of {gpu.memory / 2**30:.0f} GiB" if workload.training.batch > 30 else None

    task = load_workload("toy-job")
    assert check_job(load_hardware("two").spec, task.spec, fit=fit) == ["training.batch: needs 99 GB of 16 GiB"]
    assert gpu_names == ["Toy-GPU"]
    assert problems(workload=("training.batch=8",), fit=fit) == []


def test_all_reasons_are_told_at_once() -> None:
    assert len(problems(hardware=("node.storage=null",), workload=("training.precision=fp8",), gpus=5)) == 3


def test_odd_but_possible_jobs_are_warned_of() -> None:
    """2 ranks x 5 workers > 8 threads; 20 000 000 samples of 100 KB are 2 TB, which are 1863 GiB."""
    machine = load_hardware("toy").spec
    odd = load_workload("toy-job", ["input.num_workers=5", "dataset.samples=20000000"]).spec
    assert job_warnings(machine, odd) == [
        "input.num_workers: 2 ranks x 5 workers share 8 hardware threads",
        "node.storage.volume.size: pictures takes 2 TB, more than the 1 TB of disk; --set node.storage.volume.size='1863 GiB'",
    ]
    assert len(job_warnings(machine, odd, ranks_per_node=1)) == 1
    assert job_warnings(machine, load_workload("toy-job").spec) == []
    assert job_warnings(machine, load_workload("toy-job", ["input.loader=synthetic", "input.num_workers=99"]).spec) == []


@pytest.mark.parametrize(("trays", "warned"), [(36, False), (37, True)])
def test_more_trays_than_a_rack_has_are_warned_of(library: Path, trays: int, warned: bool) -> None:
    """The toy has two GPUs: 36 of them are the 72 of the largest rack."""
    nvlink = "nvlink: {link: {name: toy-link, bandwidth: 25 GB/s, source: tests}, switch_links: 2}"
    (library / "hardware/tray.yaml").write_text(
        f"extends: toy\nname: tray\nnode: {{topology: {{{nvlink}, pairs: null, switches: null, source: tests}}}}\n"
    )
    large = [
        text for text in job_warnings(load_hardware("tray", [f"trays={trays}"]).spec, load_workload("toy-job").spec) if "NVLink" in text
    ]
    expected = (
        "trays: NVLink joins 74 GPUs here, but at most 72 in racks that can be rented (18 trays of 4 in a GB200 or GB300 NVL72, by "
        "NVIDIA's data sheets); --nodes counts racks"
    )
    assert large == [expected] * warned


def test_samples_larger_than_those_whose_preparation_was_measured_are_warned_of() -> None:
    """5 ms are for pictures of 100 KB: 1 MB would take 50 ms in proportion. A time of one's own, or a similar size, is fine."""
    machine = load_hardware("toy").spec

    def warned(*overrides: str) -> list[str]:
        return job_warnings(machine, load_workload("toy-job", overrides).spec)

    assert warned("dataset.sample=1 MB") == [
        "dataset.prep: 5 ms of a CPU core per sample is that of pictures, whose samples take 100 KB on disk and 600 KB prepared; here it "
        "is 1 MB and 600 KB; measure one of yours, or try --set dataset.prep='50 ms', which is in proportion"
    ]
    (larger,) = warned("dataset.prepared=1200 KB")
    assert "'10 ms'" in larger
    assert warned("dataset.sample=190 KB") == warned("dataset.sample=1 MB", "dataset.prep=40 ms") == []
    assert warned("dataset.sample=1 MB", "dataset.name=mine") == warned("dataset.sample=1 MB")
    own = ("dataset.sample=1 MB", "dataset.name=mine", "dataset.prepared=700 KB", "dataset.prep=5 ms")
    assert warned(*own) == warned("dataset.sample=1 MB", "input.loader=synthetic") == []
    assert warned("dataset.sample=1 MB", "input.loader=dali_cpu") == []  # unknown for the original as well


def test_a_run_is_refused_for_all_reasons_at_once_and_its_oddities_returned() -> None:
    machine = load_hardware("toy", ["node.storage=null", "node.gpu.memory=1 MB"])
    task = load_workload("toy-job", ["training.batch=2000", "training.precision=fp8", "input.num_workers=5"])
    with pytest.raises(SpecError) as caught:
        check_run(machine, task, gpus=3)
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "--set node.gpu.memory=1 MB",
        "--set training.batch=2000",
        "--gpus 3",
        "--set node.storage=null",
        "--set training.precision=fp8",
    ]
    odd = ["input.num_workers: 2 ranks x 5 workers share 8 hardware threads"]
    assert check_run(load_hardware("toy"), load_workload("toy-job", ["input.num_workers=5"])) == odd
    assert check_run(load_hardware("toy"), load_workload("toy-job", ["input.num_workers=5"]), gpus=1) == []


def test_a_machine_without_gpus_is_no_trouble_to_judge() -> None:
    machine, task = load_hardware("toy", ["node.gpu_count=0"]).spec, load_workload("toy-job").spec
    assert check_job(machine, task, gpus=1) == ["--gpus 1: 0 x toy have 0 GPUs; write at most 0"]


@pytest.mark.parametrize("precision", ["amp_fp16", "fp16"])
def test_half_precision_without_units_is_slow_but_runs(precision: str) -> None:
    """Stash ran AMP on K80, which has no FP16 units."""
    setting = f"training.precision={precision}"
    assert problems(workload=(setting,)) == []
