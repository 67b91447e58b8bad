"""What do stages send, and what does their host add, in the closed form? Oracles: bytes over links, and passes over memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.llm.closed_form import predict
from calibration.llm.priors import defaults
from calibration.llm.weights import blocks_of_stages
from calibration.llm.wires import Wires
from sim.parallel.routing import BACKWARD_LAUNCHES
from tests.calibration.llm.test_case import one


def test_deepspeed_waits_for_each_of_four_messages(tmp_path: Path) -> None:
    # BLOOM's shape over 50 Gbps a GPU: an eighth of 2048 x 14336 elements takes 1.2 ms at full rate
    case = one(
        tmp_path, source="bigscience-workshop/bigscience@1:x", gpu="A100", gpus="384", nodes="48", tp="8", pp="12", dp="4", micro_batch="1",
        global_batch="2048", seq_len="2048", hidden="14336", layers="72", heads="112", kv_heads="112", ffn_hidden="57344", vocab="50304",
    )  # fmt: skip
    at = {**defaults(), "network": 1.0, "launch.collective": 1e-9}
    joined = replace(case, family="megatron-2021")
    message = 2.0 * 2048 * 14336 / 8 / 6.25e9
    alike = {**at, "compute:deepspeed": 1.0, "compute:megatron-2021": 1.0}
    grown = predict(case, alike).step_time - predict(joined, {**alike, "exposed.stages": 0.5}).step_time
    assert grown == pytest.approx((4 - 1) * message * (512 + 2 * 11), rel=0.05)


def test_tensor_ranks_gather_what_stages_send_in_parts(tmp_path: Path) -> None:
    """DeepSpeed's stages gather an input in forward, its gradient and an output in backward; each takes five passes through memory."""
    case = one(
        tmp_path, source="bigscience-workshop/bigscience@1:x", gpu="A100", gpus="384", nodes="48", tp="8", pp="12", dp="4", micro_batch="1",
        global_batch="2048", seq_len="2048", hidden="14336", layers="72", heads="112", kv_heads="112", ffn_hidden="57344", vocab="50304",
    )  # fmt: skip
    at = {**defaults(), "launch.collective": 1e-9}
    mesh = case.stack_file.mesh
    assert mesh is not None
    entire = replace(case)
    vars(entire)["stack_file"] = case.stack_file.model_copy(update={"mesh": mesh.model_copy(update={"stage_parts": False})})
    nbytes = 2.0 * 2048 * 14336
    spared = 4 * (Wires(case, at).send(nbytes, 32) - Wires(case, at).send(nbytes / 8, 32))
    gathers = 3 * (Wires(case, at).gather(nbytes, 8, 1) + 5 * nbytes / case.chip.memory_bandwidth)
    less = predict(entire, at).step_time - predict(case, at).step_time
    assert less == pytest.approx((spared - gathers) * (512 + 2 * 11))


def test_launches_that_block_add_the_host_to_the_gpu(tmp_path: Path) -> None:
    """A stage of six blocks runs each forward, again, and backward in every micro-batch; the others' once in the bubble."""
    case = one(
        tmp_path, framework="Megatron-DeepSpeed", gpus="16", nodes="2", tp="8", pp="2", global_batch="32", activation_checkpointing="full"
    )
    at = {**defaults(), "host": 1e-3}
    more = predict(replace(case, launch_blocking=True), at).step_time - predict(replace(case, launch_blocking=False), at).step_time
    blocks = sum(blocks_of_stages(case)[0])
    assert more == pytest.approx(blocks / 2 * (1 + 1 + BACKWARD_LAUNCHES) * 1e-3 * (case.micro_batches + 1), rel=0.01)


def test_a_host_that_sets_the_pace_recomputes_only_the_blocks_that_are_recomputed(tmp_path: Path) -> None:
    """Half of a stage's blocks add half of what all of them add; oracle: proportion."""
    at = {**defaults(), "host": 0.5}
    none, half, full = (
        predict(one(tmp_path, activation_checkpointing=text), at).step_time for text in ("none", "full, block, num_layers=16", "full")
    )
    assert half - none == pytest.approx((full - none) / 2)
    assert full - none > 16 * 32 * 0.5
