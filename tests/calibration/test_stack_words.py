"""Oracles: releases of frameworks, how each exchanges gradients by default, and the catalog's own names."""

from __future__ import annotations

import pytest

from calibration.stack_words import read_stack
from sim.spec.catalog import all_files


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("PyTorch", "torch-2.x-ddp"), ("pytorch ddp", "torch-2.x-ddp"), ("PyTorch 2.1.0", "torch-2.1-ddp"),
        ("torch 1.13", "torch-1.13-ddp"), ("PyTorch 2.6.0+cu124", "torch-2.1-ddp"), ("pytorch 2.8", "torch-2.x-ddp"),
        ("PyTorch 2 DDP", "torch-2.x-ddp"), ("PyTorch 2.x DDP", "torch-2.x-ddp"),  # which release is not known: the newest
        ("PyTorch 1.6 DDP", "torch-1.6-ddp"), ("DDP", "torch-2.x-ddp"), ("nanoGPT", "torch-2.x-ddp"),
        ("PyTorch Lightning 2.0", "torch-2.x-ddp"), ("transformers Trainer", "torch-2.x-ddp"), ("HF Trainer", "torch-2.x-ddp"),
        ("Horovod", "horovod-0.21"), ("Horovod 0.21", "horovod-0.21"), ("horovod 0.19.5 (PyTorch)", "horovod-0.19"),
        ("Horovod v0.28.1", "horovod-0.21"), ("TensorFlow 1.8 + Horovod", "tensorflow-1.12-horovod"),
        ("Horovod TF2", "tensorflow-2.3-horovod"), ("MXNet 1.3 + Horovod", "mxnet-1.6-gluon"), ("MXNet", "mxnet-1.6-gluon"),
        ("TensorFlow 2.4", "tensorflow-2.3"), ("TF2 XLA", "tensorflow-2.3-xla"), ("tf 2.x MultiWorkerMirroredStrategy", "tensorflow-2.3"),
        ("Keras", "tensorflow-2.3"), ("TensorFlow 1.15", "tensorflow-1.12"), ("TF 1.2", "tensorflow-1.1"),
        ("tensorflow 1.4", "tensorflow-1.4"),
        ("NGC PyTorch 20.03", "ngc-pytorch-20.03"), ("PaddlePaddle 2.4", "paddle-2.1"), ("Paddle 1.8", "paddle-1.8"),
        ("OneFlow", "oneflow-0.2"), ("NGC PyTorch", "ngc-pytorch-20.03"), ("NGC MxNet", "ngc-mxnet-20.03"),
        ("PyTorch 1.13 (CUDA 11.7)", "torch-1.13-ddp"), ("PyTorch 2.1 DDP NCCL backend", "torch-2.1-ddp"), ("torch 2.7.1", "torch-2.x-ddp"),
        ("PyTorch 1.9.0 + apex AMP", "torch-1.6-ddp"), ("NGC PyTorch 19.05", "ngc-pytorch-20.03"), ("NGC PyTorch 23.10", "torch-2.x-ddp"),
        ("NGC PyTorch 21.02", "ngc-pytorch-20.10"), ("NGC TensorFlow 22.01", "tensorflow-2.3"), ("DALI + PyTorch", "torch-2.x-ddp"),
        ("tf_cnn_benchmarks", "tensorflow-1.12"), ("tensorflow-gpu 1.14", "tensorflow-1.12"), ("Keras 2.3 (TF 1.15)", "tensorflow-1.12"),
        ("torch 1.8.1+cu111", "torch-1.6-ddp"), ("PyTorch 1.10.0+rocm4.2", "torch-1.12-ddp"), ("PyTorch 1.9 (CUDA11.1)", "torch-1.6-ddp"),
        ("mxnet-cu101 1.6", "mxnet-1.6-gluon"), ("Horovod (OpenMPI)", "horovod-0.21"), ("torchrun", "torch-2.x-ddp"),
        ("nvcr.io/nvidia/pytorch:20.10-py3", "ngc-pytorch-20.10"), ("nvcr.io/nvidia/tensorflow:20.03-tf1-py3", "ngc-tensorflow-20.03"),
        ("TensorFlow parameter server (async)", "tf-parameter-server"), ("async PS", "tf-parameter-server"),
        ("synchronous parameter servers", "tf-parameter-server-sync"), ("MXNet dist_async", "tf-parameter-server"),
    ],
)  # fmt: skip
def test_frameworks(text: str, meant: str) -> None:
    assert read_stack(text).stack == meant and meant in all_files("workloads/stacks")


@pytest.mark.parametrize(
    ("release", "nearest"),
    [
        ("20.10", "20.10"), ("20.06", "20.03"), ("20.07", "20.10"), ("20.11", "20.10"), ("21.05", "20.10"), ("21.09", "20.10"),
        ("21.10", "22.09"), ("22.08", "22.09"), ("22.09", "22.09"), ("22.10", "22.09"), ("23.02", "22.09"),
    ],
)  # fmt: skip
def test_containers_between_the_described_ones_are_the_nearest_by_month(release: str, nearest: str) -> None:
    """Months are counted by hand: 20.10 and 22.09 are 23 apart; PyTorch 2 is in containers from 23.03."""
    reading = read_stack(f"NGC PyTorch {release}")
    assert reading.stack == f"ngc-pytorch-{nearest}"
    assert ("the nearest" in reading.assumed) == (release != nearest)
    assert read_stack("NGC PyTorch 23.03").stack == "torch-2.x-ddp"


def test_containers_with_xla_are_read_as_those_with_xla() -> None:
    assert read_stack("NGC TensorFlow 20.05 XLA").stack == "ngc-tensorflow-20.03-xla"
    assert read_stack("NGC TensorFlow 21.02 XLA").stack == "ngc-tensorflow-20.12-xla"
    assert read_stack("NGC TensorFlow 21.02").stack == "tensorflow-2.3"


@pytest.mark.parametrize(
    "text", ["parameter server", "TensorFlow 1.4 PS", "tf_cnn_benchmarks parameter server", "distributed TensorFlow (grpc)"]
)
def test_servers_are_synchronous_by_default_and_that_is_said(text: str) -> None:
    """tf_cnn_benchmarks: cross_replica_sync is true."""
    reading = read_stack(text)
    assert reading.stack == "tf-parameter-server-sync" and "wait for each other" in reading.assumed
    assert "wait for each other" not in read_stack(f"{text} synchronous").assumed


@pytest.mark.parametrize(
    "text",
    [
        "PyTorch XLA",
        "TensorFlow 1.15 XLA",
        "Caffe2",
        "BytePS",
        "PyTorch FSDP",
        "DeepSpeed",
        "PopTorch",
        "sync SGD",
        "PyTorch and TensorFlow",
        "",
    ],
)
def test_words_without_a_stack_stay(text: str) -> None:
    assert read_stack(text) == (text, "")


def test_names_of_stacks_stay() -> None:
    assert all(read_stack(name) == (name, "") for name in all_files("workloads/stacks"))
