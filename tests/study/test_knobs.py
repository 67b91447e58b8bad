"""Does every number that a user can write move something? Oracle: the same run with that number 30% more, 30% less, or halved.

A number that moves nothing is a promise that the program does not keep: wire it, delete it, or give the reason here.
"""

from __future__ import annotations

import pytest

from tests.study.knobs import SCENARIOS, Knob, knobs, moves

pytestmark = pytest.mark.slow
WITHOUT_EFFECT = {
    "Prices.spot": "a run costs what is paid on demand; `sim.analysis.cost` can be asked for the other market",
    "Layer.arithmetic": "memory bounds what multiplies nothing: for the roofline of `sim show`",
    "Layer.backward_arithmetic": "the same, of the backward",
    "Gpu.power": "no energy is accounted; a figure for whoever reads the catalogue",
    "Cpu.clock": "speed is relative to the reference core, not to the clock",
    "Nic.nccl_plugin_latency": "NCCL 2.10's tuner, which the stacks' versions are nearest to, does not ask it",
    "Socket.nics": "numbers, not amounts: machines whose NICs hang off a socket have one, NIC 0",
}


@pytest.mark.parametrize("knob", [knob for knob in knobs() if str(knob) not in WITHOUT_EFFECT], ids=str)
def test_every_number_moves_something(knob: Knob) -> None:
    moved = any(moves(knob, scenario) for scenario in SCENARIOS)
    assert moved, f"{knob} moves nothing in any scenario: wire it, delete it, add a scenario that uses it, or list it with the reason"


@pytest.mark.parametrize("knob", [knob for knob in knobs() if str(knob) in WITHOUT_EFFECT], ids=str)
def test_what_is_listed_moves_nothing(knob: Knob) -> None:
    """Or it would stand on the list of exceptions for ever."""
    assert not any(moves(knob, scenario) for scenario in SCENARIOS), f"{knob} moves a run now: take it off the list of what does not"


def test_the_list_of_exceptions_names_fields() -> None:
    assert set(WITHOUT_EFFECT) <= {str(knob) for knob in knobs()}
