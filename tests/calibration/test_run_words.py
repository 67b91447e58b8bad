"""Oracles: what PyTorch, TensorFlow, apex and Lightning call their precisions; the catalog's own names."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.run_records import read_records, read_table
from calibration.run_words import number_meant, precision_meant
from sim.spec.yaml import SpecError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("AMP", "amp_fp16"), ("amp", "amp_fp16"), ("mixed", "amp_fp16"), ("native_amp", "amp_fp16"), ("O1", "amp_fp16"),
        ("16-mixed", "amp_fp16"), ("mixed(FP16/AMP)", "amp_fp16"), ("amp_O1(apex)", "amp_fp16"), ("amp O2", "fp16"),
        ("Automatic Mixed Precision (AMP)", "amp_fp16"), ("torch.cuda.amp", "amp_fp16"),
        ("mixed_float16", "amp_fp16"), ("fp16 mixed precision", "amp_fp16"), ("bf16-mixed", "amp_bf16"), ("AMP (bfloat16)", "amp_bf16"),
        ("mixed_bfloat16", "amp_bf16"), ("float32", "fp32"), ("FP32", "FP32"), ("single", "fp32"), ("32-true", "fp32"), ("float16", "fp16"),
        ("fp16 O2", "fp16"), ("half", "fp16"), ("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("TF32", "TF32"), ("float8", "fp8"),
        ("int8", "int8"), ("banana", "banana"), ("fp16 and fp32", "fp16 and fp32"), ("fp64", "fp64"),
    ],
)  # fmt: skip
def test_precisions(text: str, meant: str) -> None:
    """A word without a known meaning is left for the reader of the row to refuse."""
    assert precision_meant(text) == meant


def test_numbers() -> None:
    assert [number_meant("step_time_s", text) for text in ("1,290", "290 ms", "0.29", "0.2900", "two", "-3")] == [
        "1290", "0.29", "0.29", "0.2900", "two", "-3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("3.1k", "3100"), ("24,000 images/s", "24000"), ("1.2k img/sec", "1200"), ("812 samples/s", "812"), ("60 sequences/second", "60"),
        ("812", "812"), ("60 it/s", "60 it/s"), ("812 MB/s", "812 MB/s"), ("10 images/s/GPU", "10 images/s/GPU"),
    ],
)  # fmt: skip
def test_rates_of_samples_are_read_in_their_unit(cell: str, read: str) -> None:
    """Steps are not samples, and what one GPU processes is not what all do."""
    assert number_meant("throughput_samples_per_s", cell) == read


@pytest.mark.parametrize(
    ("name", "column"),
    [("images/sec", "throughput"), ("Throughput (img/s)", "throughput"), ("samples_per_second", "throughput"),
     ("imgs/s/GPU", "throughput_per_gpu"), ("sequences per second per GPU", "throughput_per_gpu")],
)  # fmt: skip
def test_columns_of_rates_say_what_they_count(name: str, column: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"hardware,workload,{name}\na,b,50\n")
    (row,) = read_table(path).records
    assert getattr(row, column) == 50 and {row.throughput, row.throughput_per_gpu} == {50, None}


def test_every_column_of_seconds_is_read_in_its_unit() -> None:
    assert [number_meant(column, "20 ms") for column in ("step_time_s", "exposed_sync_s")] == ["0.02", "0.02"]


def test_a_foreign_table_is_read_with_a_note_on_every_word_and_records_are_not(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text('hardware,workload,precision,step_time_s,role\np3.16xlarge,vgg16,AMP,"1,290 ms",prediction\n')
    table = read_table(path)
    assert (table.records[0].precision, table.records[0].step_time) == ("amp_fp16", 1.29)
    assert table.notes == (
        f"{path}:1: precision 'AMP' was read as amp_fp16",
        f"{path}:1: step_time_s '1,290 ms' was read as 1.29 seconds, and others likewise",
    )
    with pytest.raises(SpecError, match="precision: 'AMP' is unknown"):
        read_records(path)


def test_times_in_another_unit_have_one_note_per_unit(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    times = ("65 msec", "66 msec", "0.067", "68 s", "69 ms")
    path.write_text("hardware,workload,step_time_s,role\n" + "".join(f"p3.16xlarge,vgg16,{time},prediction\n" for time in times))
    table = read_table(path)
    assert [record.step_time for record in table.records] == [0.065, 0.066, 0.067, 68.0, 0.069]
    assert [note.partition("'")[2].partition("'")[0] for note in table.notes] == ["65 msec", "69 ms"]


@pytest.mark.parametrize(
    ("header", "cells"),
    [("Instance Type,Model,#GPUs,# nodes,Batch Size per GPU,Precision,Step Time (ms)", "a,b,16,2,32,fp32,250"),
     ("hardware,workload,Number of GPUs,No. of nodes,per-device batch,Precision,ms/step", "a,b,16,2,32,fp32,250"),
     ("Hardware,Workload,World Size,Num Nodes,batch/GPU,dtype,s/step", "a,b,16,2,32,fp32,0.25"),
     ("hardware,workload,num_gpus,nnodes,per_device_train_batch_size,dtype,Step time [s]", "a,b,16,2,32,fp32,0.25"),
     ("system,model,gpu_count,node_count,local batch,dtype,ms/iter", "a,b,16,2,32,fp32,250")],
)  # fmt: skip
def test_names_of_columns_as_people_write_them_are_read(header: str, cells: str, tmp_path: Path) -> None:
    """None of these columns is ignored: a row without its batch or its GPUs would be predicted as another run."""
    path = tmp_path / "runs.csv"
    path.write_text(f"{header}\n{cells}\n")
    table = read_table(path)
    (row,) = table.records
    assert (row.total_gpus, row.nodes, row.batch_per_gpu, row.precision, row.step_time) == (16, 2, 32, "fp32", 0.25)
    assert not [note for note in table.notes if "ignored" in note]
