"""Does every number that a user can write move something? Oracle: the same run with that number 30% more, 30% less, or halved.

A number that moves nothing is a promise that the program does not keep: wire it, delete it, or give the reason here.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.study.knobs import FACTORS, SCENARIOS, knobs, moves, writes

pytestmark = pytest.mark.slow
WITHOUT_EFFECT = {
    "Group.trays": "counted when a description is loaded, which then holds one node with the sums (tests/spec/test_trays.py)",
    "Prices.spot": "a run costs what is paid on demand; `sim.analysis.cost` can be asked for the other market",
    "CheapestPrices.on_demand": "for information: `prices` lists it; costs use the machine's region",
    "CheapestPrices.spot": "for information: `prices` lists it; costs use the machine's region",
    "Layer.arithmetic": "memory bounds what multiplies nothing: for the roofline of `sim show`",
    "Layer.backward_arithmetic": "the same, of the backward",
    "Layer.composed": "no scenario is of Hugging Face's GPT-2: tests/cluster/test_gpu.py",
    "Layer.dropped": "no scenario is a decoder with dropout: tests/cluster/test_gpu.py",
    "Cpu.clock": "speed is relative to the reference core, not to the clock",
    "Nic.nccl_plugin_latency": "NCCL 2.10's tuner, which the stacks' versions are nearest to, does not ask it",
    "Dataset.tokens": "read when the workload is loaded: whole, the stream is cut anew into samples from it, whose number runs have",
    "Transformer.dropout": "a mask takes the same bytes and time for every share that is not zero",
    "MeasuredOn.batch": "no scenario replays a measured profile: tests/cluster/test_measured.py",
    "MeasuredOn.tensor": "the same",
    "Transport.eager": "no scenario is on a network that asks first: tests/training/collectives/price/test_rendezvous.py",
    "Transport.rendezvous": "the same",
    "AttentionRate.sinks": "no scenario has sinks: tests/cluster/test_kernels.py",
    "Kernels.indexed_elements": "no scenario has unfused passes over experts: tests/parallel/test_unfused_experts.py",
    "Nic.burst": "no scenario sends over sockets between stages: tests/training/layouts/test_gloo.py",
    **{f"MeasuredTimes.{name}": "the same" for name in ("forward", "backward", "upkeep", "forward_launches", "backward_launches")},
    "Training.recompute_blocks": "no scenario recomputes some blocks only: tests/parallel/test_checkpointing.py",
    "Parallel.wrap": "no scenario wraps by name or size: tests/parallel/test_wraps.py",
    "Parallel.capacity_factor": "no scenario limits experts: tests/parallel/test_routing.py",
    "Transformer.rope_base": "which rotation, not how much work: tests/spec/foreign/test_launch_parsers.py",
    "Transformer.norm_epsilon": "the same",
    "Training.batches": "no scenario has unlike batches: tests/study/test_batches.py",
    **{f"BatchRamp.{name}": "a run of parts is several: tests/study/test_pretraining.py" for name in ("start", "step", "tokens")},
    **{f"Regime.{name}": "the same" for name in ("tokens", "global_batch", "sequence")},
    "Store.size": "whether checkpoints fit: tests/study/test_goodput_refusals.py",
    "Store.per_writer": "what all readers together get bounds them in the scenarios: tests/training/layouts/test_stream.py",
    "Stream.shuffled": "how long the first batch takes, which no run tells: tests/training/layouts/test_stream.py",
    "MeshOptions.step_share_bytes": "no scenario's stack has it: tests/analysis/test_layout_memory.py",
    **dict.fromkeys(
        ("Stack.compilation", "Stack.capture", "Stack.collective_timeout"),
        "weeks with failures start again, a run does not: tests/study/test_goodput.py",
    ),
    "Socket.nics": "numbers, not amounts: machines whose NICs hang off a socket have one, NIC 0",
}


@pytest.fixture(scope="module")
def moved() -> Counter[tuple[str, int]]:
    """How many fields of a block each scenario moved so far."""
    return Counter()


BLOCKS = sorted({knob.block for knob in knobs()})
AT_ONCE = {"Fabric", "Lengths", "Link", "Parallel", "Volume"}
"""A sample of all parts of a description, of blocks with few numbers: each number takes a run or more."""


@pytest.mark.parametrize("block", [block if block in AT_ONCE else pytest.param(block, marks=pytest.mark.nightly) for block in BLOCKS])
def test_every_number_moves_something(block: str, moved: Counter[tuple[str, int]]) -> None:
    """Scenarios that write the field are tried first, then those that moved most fields of its block so far."""
    without = []
    for knob in [knob for knob in knobs() if knob.block == block and str(knob) not in WITHOUT_EFFECT]:
        order = sorted(range(len(SCENARIOS)), key=lambda number: (not writes(SCENARIOS[number], knob), -moved[block, number], number))
        first = next((number for number in order if moves([knob], SCENARIOS[number])), None)
        if first is None:
            without.append(str(knob))
        else:
            moved[block, first] += 1
    assert without == [], "these move nothing in any scenario: wire, delete or list them with the reason, or add a scenario that uses them"


@pytest.mark.nightly
@pytest.mark.parametrize("factor", FACTORS)
def test_what_is_listed_moves_nothing(factor: float) -> None:
    """Or it would stand on the list of exceptions for ever. All are turned at once: what moves nothing moves nothing together."""
    listed = [knob for knob in knobs() if str(knob) in WITHOUT_EFFECT]
    moved = [str(scenario) for scenario in SCENARIOS if moves(listed, scenario, [factor])]
    assert moved == [], "a number on the list moves these runs now: take it off the list of what does not"


def test_the_list_of_exceptions_names_fields() -> None:
    assert set(WITHOUT_EFFECT) <= {str(knob) for knob in knobs()}
    assert set(BLOCKS) >= AT_ONCE
