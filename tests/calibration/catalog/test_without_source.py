"""Is a source really left out? Oracles: the catalog itself if nothing is left out, and the values that do not depend on the source."""

from __future__ import annotations

import pytest

from calibration.catalog import without_source
from calibration.catalog.without_source import machine_without, workload_without
from calibration.questions import machine_named, workload_named
from sim.spec.sections import file_values

FACTORS = ("vector_factor", "tensor_core_factor", "tensor_core_gemm_factor", "memory_efficiency")


@pytest.mark.nightly
def test_leaving_out_nothing_gives_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog carries the same fit, rounded to three digits."""
    monkeypatch.setattr(without_source, "ONE_GPU_PREFIXES", {**without_source.ONE_GPU_PREFIXES, "nobody": "no source begins like this"})
    off = []
    for name in ("p3.16xlarge", "dlperf", "lambda-v0-a40"):
        before, after = machine_named(name), machine_without("nobody", machine_named(name))
        gpus = before.groups[0].node.gpu, after.groups[0].node.gpu
        off += [(name, field) for field in FACTORS if getattr(gpus[1], field) != pytest.approx(getattr(gpus[0], field), rel=0.03)]
    for stack in ("oneflow-0.2", "ngc-pytorch-22.09"):
        workload = workload_named("resnet50", (f"training.stack={stack}",))
        stack_without = workload_without("nobody", workload, ()).training.stack
        for field in ("compute_factor", "elementwise_traffic", "launch_cpu"):
            if file_values(stack_without)[field] != pytest.approx(file_values(workload.training.stack)[field], rel=0.05):
                off.append((stack, field))
    assert off == []


@pytest.mark.nightly
def test_a_stack_that_only_one_source_ran_falls_back_to_no_factor() -> None:
    workload = workload_named("resnet50", ("training.stack=oneflow-0.2",))
    stack = workload_without("dlperf", workload, ()).training.stack
    assert stack.kernels.compute_factor == stack.kernels.elementwise_traffic == stack.update.optimizer_factor == 1.0
    overridden = workload_without("dlperf", workload, ("training.stack.compute_factor=0.9",)).training.stack
    assert overridden.kernels.compute_factor == workload.training.stack.kernels.compute_factor  # what a row sets stays
    assert workload_without("mlperf", workload, ()) is workload  # nothing rests on it


def test_constants_read_off_one_source_go_with_it() -> None:
    lambda_ = machine_named("lambda-v1-a100-80gb-sxm").groups[0].node
    assert lambda_.topology.socket_copy_bandwidth is not None
    assert (
        machine_without("lambda", machine_named(lambda_name := "lambda-v1-a100-80gb-sxm")).groups[0].node.topology.socket_copy_bandwidth
        is None
    )
    assert machine_without("mlperf", machine_named(lambda_name)).groups[0].node.topology == lambda_.topology
    pollux = machine_without("pollux", machine_named("pollux"))
    assert pollux.groups[0].node.nic.transport.efficiency == ((1.0, 1.0),)
    assert len({id(group.node) for group in pollux.groups}) == len(machine_named("pollux").groups)
