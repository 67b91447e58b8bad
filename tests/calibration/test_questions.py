"""Does a measured row become the job it describes? Oracles: the row itself, and the catalog's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration.questions import Folders, machine_named, question, questions, scale_job, workload_named
from sim.spec.yaml import SpecError
from tests.calibration.runs import record


def test_columns_reach_the_job() -> None:
    run_question = question(
        record(placement="1+2", batch_per_gpu=12, precision="amp_fp16", gradient_accumulation_steps=3, stack="torch-1.6-ddp")
    )
    training = run_question.workload.training
    assert [len(part.gpus) for part in run_question.job.placement] == [1, 2]
    assert (training.batch, training.precision, training.gradient_accumulation_steps, training.stack.name) == (
        12,
        "amp_fp16",
        3,
        "torch-1.6-ddp",
    )
    assert run_question.workload.input.loader == "synthetic" and run_question.samples == 3 * 12 * 3


def test_a_machine_of_one_node_grows_to_the_nodes_asked_for() -> None:
    assert question(record(nodes=5, gpus_per_node=4)).nodes == 5


def test_digits_name_nodes_where_the_columns_say_so() -> None:
    assert [len(part.gpus) for part in question(record(placement="12", nodes=2)).job.placement] == [1, 2]


def test_a_column_wins_over_set() -> None:
    run_question = question(
        record(
            overrides="training.batch=7;training.stack.bucket_cap=10 MiB;node.nic.bandwidth=10 Gbps", batch_per_gpu=9, stack="torch-1.6-ddp"
        )
    )
    assert (
        run_question.batch == 9
        and run_question.workload.training.stack.exchange.bucket_cap == 10 * 2**20
        and run_question.hardware.groups[0].node.nic.bandwidth == 1.25e9
    )


def test_gpus_and_samples_in_all_are_shared_alike() -> None:
    """Oracle: division; nodes of four GPUs, as few as hold them."""
    run_question = question(record(total_gpus=8, global_batch=96, gradient_accumulation_steps=3))
    assert [len(part.gpus) for part in run_question.job.placement] == [4, 4] and run_question.batch == 4
    assert run_question.samples == 96
    assert [len(part.gpus) for part in question(record(total_gpus=8, nodes=4)).job.placement] == [2, 2, 2, 2]
    assert question(record(total_gpus=3)).job.ranks == 3
    assert question(record(total_gpus=6, gpus_per_node=2.0, global_batch=48, batch_per_gpu=8)).nodes == 3


def test_throughput_stands_for_the_step() -> None:
    assert question(record(step_time=None, throughput=100.0, placement="2", batch_per_gpu=50)).step_time == pytest.approx(1.0)


def test_step_time_and_throughput_agree_within_3_percent() -> None:
    """100 samples a step of 1 s are 100 samples/s."""
    columns = {"placement": "2", "batch_per_gpu": 50, "step_time": 1.0}
    assert question(record(**columns, throughput=102.0)).step_time == 1.0
    for throughput in (96.0, 104.0, 999.0):
        with pytest.raises(SpecError, match=r"runs\.csv:2: throughput_samples_per_s: .* contradicts step_time_s 1: .* are 100 samples/s"):
            question(record(**columns, throughput=throughput))


def test_a_rate_of_tokens_stands_for_the_step() -> None:
    """Four GPUs of 8 sequences of 1,024 tokens: 32,768 tokens a step."""
    columns: dict[str, Any] = {
        "workload": "gpt2",
        "precision": "amp_fp16",
        "gpus_per_node": 4,
        "batch_per_gpu": 8,
        "throughput_tokens": 16384,
    }
    assert question(record(step_time=None, **columns)).step_time == pytest.approx(2.0)
    with pytest.raises(SpecError, match=r"throughput_tokens_per_s: 16384 contradicts step_time_s 1: .* are 3.277e\+04 tokens/s"):
        question(record(**columns))
    with pytest.raises(SpecError, match="samples of resnet50 are no text of a known length"):
        question(record(step_time=None, throughput_tokens=1000))


def test_the_rate_of_one_gpu_stands_for_the_step_of_all() -> None:
    """Two GPUs with 50 samples each, at 25 samples/s each: 2 s."""
    columns = {"placement": "2", "batch_per_gpu": 50, "throughput_per_gpu": 25.0}
    assert question(record(**columns, step_time=None)).step_time == pytest.approx(2.0)
    assert question(record(**columns, step_time=None, throughput=50.0)).step_time == pytest.approx(2.0)
    with pytest.raises(SpecError, match=r"per_gpu: 25 contradicts step_time_s 1: 100 samples a step \(2 GPUs\) are 50 samples/s per GPU"):
        question(record(**columns, step_time=1.0))
    with pytest.raises(SpecError, match=r"per_gpu: 25 contradicts throughput_samples_per_s 25: .* are 12.5 samples/s per GPU"):
        question(record(**columns, step_time=None, throughput=25.0))


def test_scaling_compute_scales_kernels_and_launches() -> None:
    before, after = question(record(batch_per_gpu=8)).workload.training, scale_job(question(record(batch_per_gpu=8)), 1.5).workload.training
    assert after.compute_factor == 1.5 * before.compute_factor and after.stack.kernels.launch_cpu == 1.5 * before.stack.kernels.launch_cpu


def test_a_problem_of_a_description_is_told_once_at_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: g4dn.12xlarge\nnode:\n  nic: {bandwdth: 10 Gbps}\n")
    rows = [record(hardware="mine", placement=placement) for placement in ("1", "2", "4")]
    with pytest.raises(SpecError) as raised:
        questions([*rows, record(workload="nothing")], Folders(hardware=tmp_path))
    first, second = str(raised.value).splitlines()
    assert first.startswith(f"{tmp_path}/mine.yaml:3:9: node.nic.bandwdth: unknown key; did you mean 'bandwidth'?")
    assert first.endswith("(read for runs.csv:2 and 2 more rows)") and second.startswith("runs.csv:2: nothing")


def test_machines_extend_those_of_the_catalog_and_of_the_records_from_any_folder(tmp_path: Path) -> None:
    made = {
        "a40": "extends: lambda-v0-a40\nnode: {nic: {bandwidth: 10 Gbps}}",
        "pods": "extends: pollux\nnode: {nic: {bandwidth: 10 Gbps}}",
        "g4dn.12xlarge": "extends: g4dn.12xlarge\nnode: {nic: {bandwidth: 10 Gbps}}",
        "grouped": "extends: pollux\ngroups: [{node: {nic: {bandwidth: 10 Gbps}}, count: 3}]",
    }
    for name, text in made.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    machines = {name: machine_named(name, (), tmp_path) for name in made}
    assert {machine.groups[0].node.nic.bandwidth for machine in machines.values()} == {1.25e9}
    assert [machines[name].groups[0].count for name in made] == [1, 16, 1, 3]
    assert machines["pods"].groups[0].node.topology.isolated == "host" and machines["a40"].groups[0].node.gpu.name.lower().startswith("a40")


def test_own_folders_come_first(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: g4dn.12xlarge\nname: mine\n")
    (tmp_path / "my-stack.yaml").write_text("extends: torch-1.13-ddp\nname: my-stack\nbucket_cap: 5 MiB\n")
    run_question = question(record(hardware="mine", stack="my-stack"), Folders(tmp_path, tmp_path))
    assert run_question.hardware.name == "mine" and run_question.workload.training.stack.exchange.bucket_cap == 5 * 2**20


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"hardware": "g4dn.12xlarg"}, "runs.csv:2: g4dn.12xlarg is not in the catalog (hardware/); did you mean g4dn.12xlarge"),
        ({"hardware": "h100-dgx"}, "did you mean hgx-h100"),
        ({"workload": "resnet5"}, "did you mean resnet50"),
        ({"stack": "torch-1.14-ddp"}, "torch-1.13-ddp"),
        ({"placement": "5"}, "which has only 4 GPUs"),
        ({"placement": "1+2", "nodes": 3}, "has 2 nodes, but the column nodes has 3"),
        ({"placement": "1+2", "gpus_per_node": 2.0}, "means 1.5 GPUs per node"),
        ({"nodes": 2, "gpus_per_node": 1.5}, "write the placement"),
        ({"nodes": 2, "total_gpus": 5}, "5 GPUs do not divide evenly over 2 nodes"),
        ({"placement": "1+2", "total_gpus": 4}, "has 3 GPUs, but the column total_gpus has 4"),
        ({"placement": "1+2", "global_batch": 8}, "8 samples do not divide evenly over 3 GPUs"),
        (
            {"placement": "2+2", "global_batch": 8, "batch_per_gpu": 4},
            "global_batch 8 means 2 samples per GPU, but the column batch_per_gpu has 4",
        ),
        ({"nodes": 2, "gpus_per_node": 2.0, "total_gpus": 6}, "2 nodes of 2 GPUs have 4, but the column total_gpus has 6"),
        ({"overrides": "training.parallel.shard=parameters"}, "rows of this table are data-parallel only"),
        ({"overrides": "training.batsh=3"}, "batsh"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(columns: dict[str, object], problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        question(record(**columns))
    assert problem in str(raised.value) and "runs.csv:2: " in str(raised.value)


def test_a_name_longer_than_file_systems_take_is_no_machine(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not in the catalog"):
        machine_named("x" * 5000, (), tmp_path)


def test_tokens_of_a_sample_reach_the_job() -> None:
    """Oracle: the number of the column; a table of layers has the length that it was traced with."""
    assert question(record(workload="llama-3.2-1b", sequence=512, hardware="hgx-h100")).workload.sequence == 512
    assert question(record(workload="gpt2-xl", sequence=512, hardware="hgx-h100")).workload.sequence == 512
    assert question(record(workload="llama-7b", sequence=2048, hardware="hgx-h100")).workload.sequence == 2048
    with pytest.raises(SpecError, match="sequence 512: samples of llama-7b have one length; name a workload of that length"):
        question(record(workload="llama-7b", sequence=512, hardware="hgx-h100"))


def test_a_layer_table_alone_is_a_workload(tmp_path: Path) -> None:
    """As `run` takes it: no workload need name the table."""
    (tmp_path / "net.yaml").write_text(
        "name: net\nparameters: 10\ninput: 4 B\nsource: x\nlayers:\n"
        "  - {name: a, op: gemm, gradients: [10], forward: 1 GFLOP, backward: 2 GFLOP, read: 1 MB, write: 1 MB, backward_traffic: 2 MB}\n"
    )
    alone = workload_named("net", ("training.batch=8",), tmp_path)
    assert alone.name == "net" and alone.training.batch == 8 and alone.model.parameters == 10
