"""Layouts and stacks that tests of laws draw, with a model that suits all of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.spec.layer import Layer
from sim.training.layouts.scene import PlayedLayout
from tests.training.layouts.toys import split_block


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int, int]:
    """Draw fields of ``parallel`` and of the machine that go together: (fields, GPUs of a node, nodes)."""
    tensor, pipeline, data = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 4)))
    schedule = draw(st.sampled_from(("gpipe", "1f1b", "zb_h1", "interleaved_1f1b", "zbv") if pipeline > 1 else ("1f1b",)))
    fields: dict[str, Any] = {"tensor": tensor, "pipeline": pipeline, "schedule": schedule}
    fields |= {"virtual_stages": 2} if schedule in ("interleaved_1f1b", "zbv") else {}
    fields["shard"] = draw(st.sampled_from(("none", "optimizer", "gradients", "parameters")))
    if fields["shard"] != "none" and data > 1:
        fields["replicate"] = draw(st.sampled_from((1, 2)))
    if fields["shard"] == "parameters":
        fields["reshard_after_forward"] = draw(st.sampled_from((None, True, False)))
    fields["micro_batches"] = pipeline * draw(st.sampled_from((1, 2)))
    gpus = tensor * pipeline * data
    nodes = draw(st.sampled_from([count for count in (1, 2, 4) if gpus % count == 0]))
    return fields, gpus // nodes, nodes


@st.composite
def stacks(draw: st.DrawFn) -> dict[str, Any]:
    flags = ("overlap_gradients", "overlap_parameters", "forward_prefetch", "separate_reduce_scatter", "pipeline_overlap", "root")
    mesh: dict[str, Any] = {flag: draw(st.booleans()) for flag in flags}
    mesh |= {"framework": draw(st.sampled_from(("fsdp2", "fsdp1", "megatron"))), "bucket_elements": draw(st.sampled_from((0, 150_000)))}
    mesh["paired_schedules"] = draw(st.sampled_from(([], ["1f1b", "dualpipev"])))
    if mesh["framework"] == "fsdp1":
        mesh |= {"backward_prefetch": draw(st.sampled_from(("pre", "post", "none"))), "limit_all_gathers": draw(st.booleans())}
    stack = {"gradient_clipping": draw(st.booleans()), "no_sync": draw(st.booleans()), "launch_cpu": draw(st.sampled_from(("0 s", "2 ms")))}
    return {"mesh": mesh, "stack": stack | {"overlap_slowdown": draw(st.sampled_from((1.0, 1.2)))}}


def model() -> list[Layer]:
    return [each for number in range(8) for each in split_block(number, 100_000)]


def assert_like(every: PlayedLayout, *ways: PlayedLayout) -> None:
    for way in ways:
        assert way.time == pytest.approx(every.time, rel=1e-9)
        for one, mean in zip(way.stages, every.stages, strict=True):
            assert one.stalls == pytest.approx(mean.stalls, rel=1e-9, abs=1e-9)
            assert math.fsum(mean.stalls.values()) == pytest.approx(mean.time, rel=1e-9)
