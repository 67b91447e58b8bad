"""Oracles: copies counted one by one over random experts, and the two ends of the formula."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.events import Cause
from sim.parallel.routing import (
    CAST_OPERATIONS,
    TENSOR_OPERATIONS,
    TIMED_RECIPES,
    Routing,
    cast_launches,
    cast_operations,
    copies_between,
    dropped_share,
    expert_host_time,
    expert_load,
    expert_operations,
    padded_bytes,
    places_reached,
    received_bytes,
    sorted_bytes,
)
from sim.parallel.split import split
from sim.spec.fields import Fp8Recipe, Precision
from sim.spec.library import load_hardware
from sim.spec.parallel import Parallel
from sim.spec.yaml import SpecError
from tests.harness import layer
from tests.parallel.layouts import model, parallel
from tests.training.layouts.toys import block, free, run, workload

HOST_STEPS: Final = Path("calibration/records/blind/2026-11-27-h200-megatron.csv")


def drawn_places(routing: Routing, places: int, tokens: int) -> list[set[int]]:
    """Return the places of the experts of *tokens* tokens, chosen as ``group_limited_topk`` of Megatron-LM does with random scores."""
    rng, group = np.random.default_rng(0), routing.experts // routing.groups
    reached = []
    for _ in range(tokens):
        groups = rng.permutation(routing.groups)[: routing.chosen_groups]
        allowed = np.concatenate([np.arange(each * group, (each + 1) * group) for each in groups])
        chosen = rng.permutation(allowed)[: routing.copies]
        reached.append(set((chosen * places // routing.experts).tolist()))
    return reached


@pytest.mark.parametrize(
    ("routing", "places"),
    [
        (Routing(256, 8, 8, 4), 8), (Routing(256, 8, 8, 4), 64), (Routing(256, 8, 8, 4), 4), (Routing(256, 8, 8, 4), 2),
        (Routing(256, 8), 8), (Routing(8, 2), 2), (Routing(60, 4, 6, 2), 4), (Routing(64, 2, 4, 3), 4), (Routing(128, 4), 32),
    ],
)  # fmt: skip
def test_a_token_goes_once_to_each_place_that_has_experts_for_it(routing: Routing, places: int) -> None:
    reached = drawn_places(routing, places, 4000)
    assert places_reached(routing, places) == pytest.approx(np.mean([len(each) for each in reached]), rel=0.015)
    # the token lies on place 0, which by symmetry leaves the same share as one copy for each expert
    sent = np.mean([len(each - {0}) for each in reached]) / (routing.copies * (places - 1) / places)
    assert copies_between(places, routing, one_copy=True) == pytest.approx(sent, rel=0.03)


def test_places_reached_has_exact_values() -> None:
    assert places_reached(Routing(4, 2), 2) == pytest.approx(2 - 2 / 6)  # 2 of the 6 pairs of experts are on one node
    assert places_reached(Routing(8, 2, 4, 1), 4) == 1.0  # both experts of the group, which is a node
    assert places_reached(Routing(8, 4, 4, 2), 4) == 2.0  # all experts of two nodes
    assert places_reached(Routing(8, 4, 4, 2), 8) == 4.0  # each rank holds one of the four experts
    assert places_reached(Routing(256, 8, 8, 4), 8) == pytest.approx(4 * (1 - math.comb(96, 8) / math.comb(128, 8)))
    # 3 nodes of two groups each: both groups on one node with probability 1/5, else one on each of two
    assert places_reached(Routing(12, 4, 6, 2), 3) == pytest.approx(1 * 0.2 + 2 * 0.8)


@given(
    groups=st.sampled_from([1, 2, 4, 8]), chosen=st.integers(1, 8), per_group=st.sampled_from([4, 8, 16]), copies=st.integers(1, 8),
    places=st.sampled_from([1, 2, 4, 8, 16]),
)  # fmt: skip
def test_no_token_goes_to_more_places_than_it_has_experts(groups: int, chosen: int, per_group: int, copies: int, places: int) -> None:
    chosen, experts = min(chosen, groups), groups * per_group
    routing, every = Routing(experts, min(copies, chosen * per_group), groups, chosen), Routing(experts, min(copies, chosen * per_group))
    reached = places_reached(routing, places)
    assert 1.0 - 1e-12 <= reached <= min(places, routing.copies) + 1e-12
    assert reached <= places_reached(every, places) + 1e-12  # limiting the choice never spreads tokens
    if places == groups:
        assert reached <= chosen + 1e-12


def test_one_place_and_one_copy_for_each_expert_save_nothing() -> None:
    assert copies_between(1, Routing(64, 8), one_copy=True) == copies_between(8, Routing(64, 8), one_copy=False) == 1.0
    assert copies_between(8, Routing(64, 1), one_copy=True) == pytest.approx(1.0)


def test_graphs_leave_a_part_of_the_experts_to_the_host() -> None:
    assert 0 < expert_host_time(2e-3, graphs=True) < expert_host_time(2e-3, graphs=False) == 2e-3


class Grouped:
    """Transformer Engine's ``GroupedLinear`` over *experts* experts, which notes what the host starts, one list for each pass."""

    def __init__(self, experts: int, cast: list[str], together: bool) -> None:
        self.experts, self.cast, self.together = experts, cast, together

    def split_quantize(self, started: list[str]) -> None:
        for expert in range(self.experts):
            if not (self.together and expert):
                started += self.cast

    def forward(self) -> list[str]:
        started: list[str] = []
        self.split_quantize(started)
        started += ["product"] * self.experts
        return started

    def backward(self) -> list[str]:
        started: list[str] = []
        self.split_quantize(started)
        for _ in ("inputs", "weights"):
            started += ["product"] * self.experts
        for _ in range(self.experts):
            started += ["empty gradient", "hook"]
        return started


@pytest.mark.parametrize(
    ("precision", "recipe", "machine", "cast", "together"),
    [
        ("bf16", None, "hgx-h100", [], False),
        ("fp8", "delayed", "hgx-h100", ["cast and transpose"], True),
        ("fp8", "delayed", "hgx-b200", ["cast"], False),
        ("fp8", "tensorwise", "hgx-h100", ["clear", "maximum", "scale", "cast"], False),
        ("fp8", "blockwise", "hgx-h100", ["cast"], False),
        ("fp8", "mxfp8", "hgx-b200", ["cast"], False),
        ("nvfp4", None, "hgx-b200", ["maximum", "rows", "columns"], False),
    ],
)
def test_the_host_starts_as_much_for_each_expert_as_grouped_products_do(
    precision: Precision, recipe: Fp8Recipe | None, machine: str, cast: list[str], together: bool
) -> None:
    """One more expert in both products of a block, pass by pass; a kernel that casts for all experts is not one expert's.

    Kernels that cast, and tensors in 8 bits, cost as much as measured beside other operations, where they were.
    """
    gpu = load_hardware(machine).spec.groups[0].node.gpu
    few, more = (Grouped(count, cast, together) for count in (4, 5))
    assert cast_launches(precision, recipe, gpu) == len(more.forward()) - len(few.forward()) - 1
    each, timed = cast_operations(precision, recipe, gpu), recipe in TIMED_RECIPES
    for backward, of_few, of_more in ((False, few.forward(), more.forward()), (True, few.backward(), more.backward())):
        started = of_more[:]
        for one in of_few:
            started.remove(one)
        casts = sum(one in cast for one in started)
        expected = len(started) - casts + (CAST_OPERATIONS * casts + TENSOR_OPERATIONS if timed else casts)
        assert expert_operations(each, backward) == pytest.approx(2 * expected)


def test_an_expert_in_8_bits_takes_the_host_as_much_longer_as_measured() -> None:
    """Steps of Qwen3 30B with 128 experts, six blocks, four micro-batches and 256 tokens, less those in 16 bits, in operations of 36 us.

    Two products of each block are not those of experts; they take 0.7 ms longer each.
    """
    rows = list(csv.DictReader(line for line in HOST_STEPS.read_text().splitlines() if not line.startswith("#")))
    prefix = "megatron-qwen3-30b-a3b-6-layers-128-experts-seq256"
    steps = {
        row["name"].removeprefix(prefix): float(row["measured"]) for row in rows if row["name"].startswith(prefix) and row["kind"] == "step"
    }
    gpu = load_hardware("gpu-h200-sxm_1gpu-16vcpu-200gb").spec.groups[0].node.gpu
    recipes: tuple[Fp8Recipe, ...] = ("delayed", "blockwise", "tensorwise")
    for recipe in recipes:
        measured = ((steps[f"-{recipe}"] - steps[""]) / (4 * 6) - 2 * 0.7e-3) / 128 / 36e-6
        cast = cast_operations("fp8", recipe, gpu)
        more = sum(expert_operations(cast, backward) - expert_operations(0.0, backward) for backward in (False, True))
        assert more == pytest.approx(measured, rel=0.05), recipe


def test_copies_are_read_and_written_once_to_be_sorted() -> None:
    assert sorted_bytes(1e6, 16) == 2e6
    assert sorted_bytes(1e6, 1) == 0.0


def test_each_rank_permutes_the_tokens_that_it_received() -> None:
    """Oracle: rows that all ranks read, counted over random routing; the layer table counts one for each token."""
    routing, ranks = Routing(64, 8), 8
    read = np.mean([len(each) for each in drawn_places(routing, ranks, 4000)])
    assert received_bytes(8.0, routing, ranks) == pytest.approx(read - 1.0, rel=0.02)  # a byte for each copy of a token
    assert received_bytes(8.0, routing, 1) == 0.0


def test_copies_are_padded_in_a_copy_unless_dispatch_pads_them() -> None:
    """A copy of 1,000 tokens to rows that are a multiple of 16 for each expert reads and writes all, whatever it adds."""
    counts = np.random.default_rng(1).multinomial(1000, [1 / 4] * 4)
    rows = int(sum(-(-count // 16) * 16 for count in counts))
    assert any(counts % 16)
    assert padded_bytes(1000.0, quantized=True, one_copy=False) == pytest.approx(1000.0 + rows, rel=0.02)
    assert padded_bytes(1000.0, quantized=False, one_copy=False) == padded_bytes(1000.0, quantized=True, one_copy=True) == 0.0


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25, 2.0, 4.0])
@pytest.mark.parametrize("imbalance", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("padded", [False, True])
def test_capacity_drops_what_counting_drops(factor: float, imbalance: float, padded: bool) -> None:
    """Copies of 1200 for each of 16 experts on 4 ranks, counted one expert at a time; all that is dropped is missing."""
    ranks, experts, mean = 4, 4, 1200
    most = round(imbalance * mean)
    others = (ranks * mean - most) // (ranks - 1)
    routed = [[most] * experts, *[[others] * experts for _ in range(ranks - 1)]]
    capacity = int(np.ceil(factor * mean))
    kept = [[min(each, capacity) for each in own] for own in routed]
    worked = [[capacity if padded else each for each in own] for own in kept]
    given = parallel(expert=ranks, expert_imbalance=imbalance, capacity_factor=factor, pad_to_capacity=padded)
    load = expert_load(given)
    assert load.maximum == pytest.approx(max(map(sum, worked)) / (experts * mean), rel=1e-3)
    assert load.mean == pytest.approx(sum(map(sum, worked)) / (ranks * experts * mean), rel=1e-3)
    assert dropped_share(given) == pytest.approx(1 - sum(map(sum, kept)) / (ranks * experts * mean), abs=1e-3)


def test_experts_with_capacity_compute_and_send_as_much() -> None:
    """Padded to twice the mean: twice the work and the bytes, evenly; limited to it: what one rank has beyond goes."""
    grouped = {"share": "expert", "groups": 4, "tokens": 8, "read": "4 kB", "write": "4 kB", "channels": (8, 8)}
    experts = [layer(0.01, 0.02, 1000, name=f"layers.0.{name}", **grouped) for name in ("up", "down")]

    def messages(**fields: object) -> tuple[float, float, float]:
        (unit,) = split(model(experts), parallel(expert=4, **fields))
        first = unit.pieces[0]
        (message,) = first.forward
        return first.layer.forward, message.nbytes, message.skew

    work, nbytes, _ = messages()
    assert messages(capacity_factor=2.0, pad_to_capacity=True, expert_imbalance=3.0) == pytest.approx((2 * work, 2 * nbytes, 1.0))
    assert messages(capacity_factor=2.0, expert_imbalance=3.0) == pytest.approx((2 * work, nbytes * 3 / 4, 2 / 0.75))
    assert messages(capacity_factor=4.0, expert_imbalance=3.0) == pytest.approx((3 * work, nbytes, 3.0))


def test_a_host_that_knows_the_capacity_waits_for_no_counts() -> None:
    """Padded experts are launched ahead like all else; others only once the number of their tokens has come."""
    grouped = {"share": "expert", "groups": 4, "tokens": 8, "read": "4 kB", "write": "4 kB", "channels": (8, 8)}
    layers = [block(0, 0.5), *(layer(0.001, 0.5, 10, name=f"layers.1.{name}", **grouped) for name in ("up", "down"))]
    launch = {"launch_cpu": "100 ms"}
    waits, ahead = (
        run(free(4), workload(layers, launch, expert=4, capacity_factor=1.0, pad_to_capacity=padded)).stalls[Cause.LAUNCH]
        for padded in (False, True)
    )
    assert waits - ahead == pytest.approx(0.1 + 0.1 - 0.001, rel=1e-3)  # the second product, and the first of backward, beside the second


def test_capacity_needs_experts() -> None:
    with pytest.raises(SpecError, match="capacity_factor: toy has no experts; leave it out"):
        split(model([layer(0.1, 0.1, 10)]), parallel(capacity_factor=1.5))
    with pytest.raises(ValueError, match="pad_to_capacity needs capacity_factor"):
        Parallel.model_validate({"pad_to_capacity": True})
