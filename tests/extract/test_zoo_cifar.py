"""Are CM-DARE's models ours? Oracle: parameters, tensors and FLOP that cake-lab/CM-DARE counted with tfprof."""

from __future__ import annotations

import pytest

from sim.spec.library import load_part
from sim.spec.model import Model

COUNTED = {
    "resnet15-cifar": (693_818, 50, 630_989_589),
    "resnet32-cifar": (1_857_722, 104, 1_658_696_889),
    "shake-shake-small": (2_926_986, 216, 2_587_431_950),
    "shake-shake-big": (26_204_362, 216, 22_864_820_174),
}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_tensors_are_cm_dares(name: str) -> None:
    parameters, tensors, flop = COUNTED[name]
    model = load_part(Model, name)
    assert model.parameters == sum(sum(layer.gradients) for layer in model.layers) == parameters
    assert sum(len(layer.gradients) for layer in model.layers) == tensors
    # tfprof also counts norms, activations and the optimizer's update
    assert sum(layer.forward + layer.backward for layer in model.layers) == pytest.approx(flop, rel=0.03)
