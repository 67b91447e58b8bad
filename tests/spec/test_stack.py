"""Oracle: stacks whose fields contradict one another, and the one sentence each must give; and the catalog's against their sources."""

from __future__ import annotations

import pytest

from sim.spec.layer import Layer
from sim.spec.library import load_part, load_workload
from sim.spec.stack import Apex, Ddp, Fusion, Horovod, Stack
from sim.spec.yaml import SpecError

MIB = 2**20
FUSION = "{threshold: 64 MiB, cycle_time: 5 ms, control_latency: 20 us, request_time: 1 us, source: test}"

CONTRADICTIONS = {
    ("strategy=horovod",): "fusion: is missing, but strategy horovod needs it; write a block (threshold, cycle_time, control_latency, "
    "request_time, source ...), or extend one that has it ('python -m sim list stacks')",
    (f"fusion={FUSION}",): "applies only to horovod, but this is strategy ddp; leave it out, or write strategy: horovod",
    ("strategy=parameter_server_async",): "servers: is missing, but strategy parameter_server_async needs it; write a block (source ...), "
    "or extend one that has it ('python -m sim list stacks')",
    ("servers={source: t}",): "applies only to parameter_server or parameter_server_async, but this is strategy ddp; leave it out, "
    "or write strategy: parameter_server",
    ("strategy=flat", "bucket_cap=1 MiB"): "applies only to ddp or parameter_server, but this is strategy flat; leave it out, "
    "or write strategy: ddp",
    ("bucket_cap=1 MiB", "strategy=flat"): "applies only to ddp or parameter_server, but this is strategy flat; leave it out, "
    "or write strategy: ddp",
    ("message_size=9",): "applies only to apex, but this is strategy ddp; leave it out, or write strategy: apex",
    ("strategy=fsdp",): "found 'fsdp'; write one of ddp, apex, apex_per_tensor, flat, horovod, parameter_server, parameter_server_async",
    ("strategy=null",): "found nothing; write one of ddp, apex, apex_per_tensor, flat, horovod, parameter_server, parameter_server_async",
    ("strategy=parameter_server_async", "servers={source: t}", "overlap=true"): "asynchronous workers push only after backward; "
    "write false, or strategy: parameter_server",
    ("exchange={strategy: ddp}",): "exchange is not a key; write its keys, such as strategy, beside the others",
    ("overlap=2",): "found 2; write true or false",
    ("cuda_graphs=true", "blocking_scalar_all_reduces=1"): "cuda_graphs cannot capture work on the host: horovod, gloo, parameter servers "
    "and blocking_scalar_all_reduces; leave them out, or write cuda_graphs: false",
    (
        "nccl_algo=halving_doubling",
        "nccl_proto=LL",
    ): "nccl_proto LL: protocols apply to NCCL's own algorithms, not to HalvingDoubling; leave it out",
    ("backend=gloo",): "backend gloo needs a gloo_transport; write gloo_transport: tcp-single-flow",
    ("nccl=nightly",): "nccl 'nightly' is no release of NCCL 2; write one, such as 2.18 or 2.27.3",
    ("gloo_transport=tcp-single-flow",): "gloo_transport is a gloo option, but backend is nccl; leave it out, or write backend: gloo",
    ("backend=gloo", "gloo_transport=tcp-single-flow", "channels=2"): "channels: an NCCL option, but backend is gloo; leave it out, "
    "or write backend: nccl",
    (
        "backend=gloo",
        "gloo_transport=tcp-single-flow",
        "nccl_algo=Ring",
        "nccl_proto=LL",
    ): "nccl_algo, nccl_proto: an NCCL option, but backend is gloo; leave it out, or write backend: nccl",
    (
        "strategy=parameter_server",
        "servers={count: 1, source: t}",
        "sync_batch_norm=true",
    ): "applies only to ddp, apex, apex_per_tensor, flat or horovod, but this is strategy parameter_server; leave it out, "
    "or write strategy: ddp",
    (
        "strategy=parameter_server",
        "servers={count: 1, source: t}",
        "backend=gloo",
        "gloo_transport=tcp-single-flow",
    ): "backend gloo is for all-reduces between ranks; leave it out, or use a strategy without parameter servers",
    ("compression={method: top_k, source: t}",): "method top_k needs density; add it, for example density: 0.01",
    ("compression={method: power_sgd, density: 0.1, source: t}",): "method power_sgd needs rank; add it, for example rank: 4",
    ("compression={method: power_sgd, rank: 4, density: 0.1, source: t}",): "density does not apply to method power_sgd; leave it out",
}


@pytest.mark.parametrize("keys", CONTRADICTIONS)
def test_contradictory_fields_are_one_sentence(library, keys):
    with pytest.raises(SpecError) as raised:
        load_workload(str(library / "workloads/toy-job.yaml"), [f"training.stack.{key}" for key in keys])
    (sentence,) = str(raised.value).splitlines()
    assert sentence.endswith(CONTRADICTIONS[keys])
    assert "training.stack" in sentence


@pytest.mark.parametrize(
    "keys, sentence",
    [
        ({"gradients": (10,), "rows": 3}, "do not divide"),
        ({"rows": 3}, "do not divide"),
        ({"gradients": (10,), "rows_per_sample": 3}, "without rows"),
    ],
)
def test_an_embedding_has_whole_rows(keys, sentence):
    with pytest.raises(ValueError, match=sentence):
        Layer.model_validate({"name": "table", "op": "embedding"} | keys)


def stack(name):
    return load_part(Stack, name)


@pytest.mark.parametrize("name, threshold, cycle", [("horovod-0.19", 64, 5e-3), ("horovod-0.21", 128, 1e-3)])
def test_horovods_defaults_by_version(name, threshold, cycle):
    """horovod/common/operations.cc at v0.19.5 and v0.21.0."""
    loaded = stack(name)
    fusion = loaded.exchange.fusion
    assert (fusion.threshold, fusion.cycle_time, fusion.response_cache) == (threshold * MIB, cycle, 1024)
    assert not loaded.exchange.broadcast_buffers


def test_backends_and_buckets_of_the_catalog():
    """Sources as in the files: apex distributed.py, torch/optim since 2.0, as below."""
    apex = stack("apex-ddp").exchange
    assert (apex.strategy, apex.message_size, apex.blocking_scalar_all_reduces) == ("apex", 10**7, 0)
    assert stack("apex-ddp").library.nccl == stack("torch-1.6-ddp").library.nccl == "2.7.3", "apex's DDP went out of use with torch 1.6"
    assert (stack("gloo-ddp").library.backend, stack("gloo-ddp").library.gloo_transport.flows) == ("gloo", 1)
    assert (stack("torch-2.x-ddp").update.optimizer, stack("torch-2.x-ddp").exchange.bucket_cap) == ("foreach", 25 * MIB)


FRAMEWORKS = {
    "ngc-pytorch-20.03": ("apex", 10**7),
    "ngc-pytorch-20.03-bert": ("apex", 250 * 10**6),
    "ngc-tensorflow-20.03": ("horovod", 64 * MIB),
    "ngc-tensorflow-20.03-xla": ("horovod", 64 * MIB),
    "ngc-mxnet-20.03": ("horovod", 64 * MIB),
    "mxnet-1.6-gluon": ("horovod", 64 * MIB),
    "torch-1.6-ddp": ("ddp", 25 * MIB),
    "tensorflow-2.3": ("flat", None),
    "paddle-1.8": ("apex_per_tensor", None),
    "oneflow-0.2": ("ddp", 16 * MIB),
    "mindspore-1.1": ("ddp", 80 * MIB),
    "mindspore-1.1-fused": ("ddp", 512 * MIB),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_of_dlperf_exchange_as_their_sources_say(name):
    """Sources in the files: the strategy, and the elements or bytes that it puts together."""
    exchange = stack(name).exchange
    match exchange:
        case Apex(message_size=together) | Ddp(bucket_cap=together) | Horovod(fusion=Fusion(threshold=together)):
            pass
        case _:
            together = None
    assert (exchange.strategy, together) == FRAMEWORKS[name]
    assert exchange.broadcast_buffers == (name == "torch-1.6-ddp")
    assert exchange.overlap == (name not in ("tensorflow-2.3", "ngc-tensorflow-20.03-xla", "mxnet-1.6-gluon"))
