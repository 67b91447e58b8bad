"""Oracle: stacks whose fields contradict one another, and the one sentence each must give; and the catalogue's against their sources."""

from __future__ import annotations

import pytest

from sim.spec.layer import Layer
from sim.spec.library import load_part, load_workload
from sim.spec.stack import Stack
from sim.spec.yaml import SpecError

MIB = 2**20
FUSION = "{threshold: 64 MiB, cycle_time: 5 ms, control_latency: 20 us, request_time: 1 us, source: test}"

CONTRADICTIONS = {
    ("strategy=horovod",): "strategy horovod needs a fusion block (threshold, cycle_time); add it, or extend horovod-0.21",
    (f"fusion={FUSION}",): "fusion is a Horovod option, but strategy is ddp; leave it out, or write strategy: horovod",
    ("cuda_graphs=true", "blocking_scalar_all_reduces=1"): "cuda_graphs cannot capture work on the host: horovod, gloo, parameter servers "
    "and blocking_scalar_all_reduces; leave them out, or write cuda_graphs: false",
    (
        "nccl_algo=halving_doubling",
        "nccl_proto=LL",
    ): "nccl_proto LL: protocols apply to NCCL's own algorithms, not to HalvingDoubling; leave it out",
    ("backend=gloo",): "backend gloo needs a gloo_transport; write gloo_transport: tcp-single-flow",
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
    ): "sync_batch_norm, compression and sparse_embeddings need collectives between ranks; leave them out, or use a strategy "
    "without parameter servers",
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
    return load_part(Stack, name, "workloads/stacks")


@pytest.mark.parametrize("name, threshold, cycle", [("horovod-0.19", 64, 5e-3), ("horovod-0.21", 128, 1e-3)])
def test_horovods_defaults_by_version(name, threshold, cycle):
    """horovod/common/operations.cc at v0.19.5 and v0.21.0."""
    loaded = stack(name)
    assert (loaded.fusion.threshold, loaded.fusion.cycle_time, loaded.fusion.response_cache) == (threshold * MIB, cycle, 1024)
    assert not loaded.broadcast_buffers


def test_backends_and_buckets_of_the_catalogue():
    """Sources as in the files: apex distributed.py, torch/optim since 2.0, as below."""
    assert (stack("apex-ddp").strategy, stack("apex-ddp").message_size, stack("apex-ddp").blocking_scalar_all_reduces) == ("apex", 10**7, 0)
    assert (stack("gloo-ddp").backend, stack("gloo-ddp").gloo_transport.flows) == ("gloo", 1)
    assert (stack("torch-2.x-ddp").optimizer, stack("torch-2.x-ddp").bucket_cap) == ("foreach", 25 * MIB)


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
    loaded = stack(name)
    together = {"apex": loaded.message_size, "horovod": loaded.fusion and loaded.fusion.threshold, "ddp": loaded.bucket_cap}
    assert (loaded.strategy, together.get(loaded.strategy)) == FRAMEWORKS[name]
    assert loaded.broadcast_buffers == (name == "torch-1.6-ddp")
    assert loaded.overlap == (name not in ("tensorflow-2.3", "ngc-tensorflow-20.03-xla", "mxnet-1.6-gluon"))
