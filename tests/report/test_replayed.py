"""Does a run tell what a replayed profile does not carry over? Oracles: settings that equal or differ from those of the measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sim.report.document import run_document
from sim.report.table import run_text
from sim.report.verdict import assumptions, warnings
from sim.study.scenario import Scenario, answer

LAYERS = """
name: traced
model:
  {name: traced, parameters: 1000, input: 1 B, source: test, measured: {gpu: V100-SXM2-16GB, batch: 64, precision: fp32, source: test},
   layers: [{name: all, op: gemm, WORKgradients: [1000], measured: {forward: 1 ms, backward: 2 ms, upkeep: 1 us}}]}
dataset: {name: traced, samples: 10000, sample: 1 kB, prepared: 1 B, prep: 0 s, source: test}
input: {loader: synthetic, source: test}
training:
  {batch: 64, precision: fp32, source: test, stack: {extends: torch-2.x-ddp, gradient_copy_passes: 0.0, source: test}}
"""


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    path = tmp_path / "traced.yaml"
    path.write_text(LAYERS.replace("WORK", ""), encoding="utf-8")
    return path


def test_scaled_times_and_unknown_memory_are_assumptions(traced: Path) -> None:
    """Nothing is scaled on the GPU, with the batch and in the precision of the profile."""
    same, elsewhere = (
        answer(Scenario(machine, str(traced), batch=batch)).run for machine, batch in (("p3.2xlarge", 64), ("g5.xlarge", 32))
    )
    memory = "GPU memory without activations, which the trace does not show"
    assert memory in assumptions(same) and not any("layer times" in line for line in assumptions(same))
    scaled = "layer times were measured on V100-SXM2-16GB with 64 samples in fp32, and are scaled to A10G, 32 samples by modeled times"
    assert {memory, scaled} <= set(assumptions(elsewhere))


def test_gloo_on_gpus_names_a_stack_with_nccl(traced: Path) -> None:
    """A job profiled on CPUs keeps Gloo, which would limit GPUs; on ranks of CPU cores it is what they use."""
    traced.write_text(traced.read_text().replace("torch-2.x-ddp", "gloo-ddp"), encoding="utf-8")
    question = Scenario("p3.16xlarge", str(traced))
    (said,) = (line for line in assumptions(answer(question).run) if "Gloo" in line)
    assert said.endswith("jobs on GPUs use NCCL: --stack torch-2.x-ddp")
    nccl, cores = replace(question, stack="torch-2.x-ddp"), replace(question, overrides=("node.gpu.host_cores=1",))
    assert not any("Gloo" in line for other in (nccl, cores) for line in assumptions(answer(other).run))


def test_a_stack_that_counts_copies_twice_is_warned_of(traced: Path) -> None:
    """The stack in the file leaves copies to the measured layers; one given at the run adds them again, unless layers have work."""
    question = Scenario("p3.2xlarge", str(traced), stack="torch-1.13-ddp")
    (warning,) = warnings(answer(question).run)
    assert "to which stack torch-1.13-ddp adds its own" in warning
    assert not warnings(answer(replace(question, stack=None)).run)
    table = traced.with_name("table.yaml")
    table.write_text(LAYERS.replace("WORK", "forward: 1 MFLOP, backward: 2 MFLOP, "), encoding="utf-8")
    described = answer(replace(question, workload=str(table))).run
    assert not warnings(described) and not any("activations" in line for line in assumptions(described))


def test_a_copy_of_a_byte_is_not_a_row_of_the_table(traced: Path) -> None:
    """Without copies in the profile, the input is 1 byte: 0.1 ns at 12 GB/s."""
    answered = answer(Scenario("p3.2xlarge", str(traced)))
    assert "  copy " not in run_text(answered.run, run_document(answered.run, answered.inputs))
