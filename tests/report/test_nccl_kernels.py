"""Are collectives called what NCCL calls them? Oracles: names in published profiles, and what the exchange chose."""

from __future__ import annotations

import pytest

from sim.parallel.program import Op
from sim.report.nccl_kernels import collective_kernel, element, nccl_kernel, operation_of
from sim.report.trace.excerpt import excerpt
from sim.report.trace.run_trace import trace_document
from sim.spec.library import load_workload
from sim.study.scenario import Scenario, answer


@pytest.mark.parametrize(
    ("op", "kind", "algorithm", "version", "name"),
    [
        # vLLM and SGLang profiles of NCCL 2.2x
        ("all_reduce", "bf16", "Ring", "2.30", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ("all_gather", "bf16", "Ring", "2.30", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ("all_reduce", "f32", "Tree", "2.30", "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ("all_reduce", "f16", "NVLS", "2.30", "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        # pytorch/kineto's sample trace, torch 1.x
        ("all_reduce", "f32", "Ring", "2.10", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"),
        ("all_reduce", "f16", "Tree", "2.10", "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)"),
        ("broadcast", "f32", "Ring", "2.10", "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)"),
        ("all_to_all", "f32", "Pairwise", "2.30", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
        ("gather", "f32", "Gather", "2.30", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
        ("reduce", "bf16", "Ring", "2.30", "ncclDevKernel_Reduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ],
)
def test_names_are_nccl_s(op: Op, kind: str, algorithm: str, version: str, name: str) -> None:
    assert nccl_kernel(op, kind, algorithm, version) == name


@pytest.mark.parametrize(
    ("precision", "wire", "kind"),
    [
        ("fp32", "null", "f32"), ("amp_fp16", "null", "f32"), ("fp16", "null", "f16"), ("bf16", "null", "bf16"),
        ("fp32", "fp16", "f16"), ("fp32", "bf16", "bf16"), ("amp_bf16", "autocast", "bf16"), ("amp_fp16", "autocast", "f16"),
    ],
)  # fmt: skip
def test_the_type_is_the_wire_s(precision: str, wire: str, kind: str) -> None:
    workload = load_workload("resnet50", [f"training.precision={precision}", f"training.stack.wire_dtype={wire}"]).spec
    assert element(workload) == kind


def test_a_trace_shows_what_the_exchange_chose() -> None:
    """Oracle: the plan's own choice for the bytes of each bucket."""
    run = answer(Scenario("p3.16xlarge", "vgg16", ("training.precision=fp16",))).run
    plan = run.rings[0]
    assert plan is not None
    kernels = [event for event in trace_document(run, excerpt(run))["traceEvents"] if event.get("args", {}).get("algorithm")]
    assert len({(event["args"]["protocol"], event["args"]["channels"]) for event in kernels}) > 1  # buckets are of several sizes
    for event in kernels:
        chosen = plan.choice(event["args"]["bytes"])  # type: ignore[union-attr]
        assert (event["args"]["algorithm"], event["args"]["protocol"], event["args"]["channels"]) == chosen
        assert event["name"].startswith(f"ncclKernel_AllReduce_{'TREE' if chosen.algorithm == 'Tree' else 'RING'}_LL_Sum_half")


def test_compressed_gradients_are_gathered() -> None:
    run = answer(Scenario("p3.16xlarge", "resnet50", ("training.stack.compression={method: top_k, density: 0.01, source: test}",))).run
    workload = run.jobs[0].job.workload
    names = {work.name: work.nbytes for work in run.log.work if work.stream == "comm" and work.name.startswith("bucket") and work.nbytes}
    assert names and {operation_of(name, nbytes, workload, 8) for name, nbytes in names.items()} == {"all_gather"}


def test_other_backends_are_named_otherwise() -> None:
    servers = answer(Scenario("cm-dare-p100", "resnet50", stack="tf-parameter-server")).run
    assert collective_kernel(servers, 0, "push", 1.0) == ("parameter server: push", {})
    gloo = answer(Scenario("p3.16xlarge", "resnet50", ("training.stack.backend=gloo", "training.stack.gloo_transport=tcp-single-flow"))).run
    name, arguments = collective_kernel(gloo, 0, "bucket 0", 1e6)
    assert name == "gloo:all_reduce" and arguments["algorithm"] == "Gloo ring"
