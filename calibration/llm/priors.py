"""Which constants does the closed form have, and what are they before any fit? The values of `priors.yaml`, and software families."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from sim.spec.yaml import SpecError, read

Constants = Mapping[str, float]

FAMILIES: Final = ("megatron", "megatron-2021", "deepspeed", "nanotron", "fsdp1", "fsdp2", "jax", "llmc")
MEGATRON_FAMILIES: Final = ("megatron", "megatron-2021", "deepspeed")
"""Families that run Megatron-LM or derive from it."""
EAGER_FAMILIES: Final = ("nanotron", "fsdp1", "fsdp2")
"""Families whose blocks torch runs operator by operator, with FlashAttention 2 or a similar kernel."""
BLOCK_OPERATORS: Final = 42
"""Operators of a decoder's block that such families start one by one in forward (``mesh.block_host`` of workloads/stacks/nanotron.yaml)."""
TENSOR_OPERATORS: Final = 1.8
"""What they start in addition for each message of tensor ranks: 18 operators for 10 messages of a block (nanotron
parallel/tensor_parallel/functional.py: 10 collectives, and 2 more products for each input gathered by columns in forward and by rows in
backward)."""
EXPOSED_EXPERTS: Final = 0.4
"""Part of dispatch and combine that stays exposed if they overlap with another micro-batch's compute: estimate."""
FILE: Final = Path(__file__).with_name("priors.yaml")


class ConstantPrior(NamedTuple):
    """One constant before any fit: its value, and the standard deviation of its logarithm."""

    value: float
    width: float


@cache
def priors() -> Mapping[str, ConstantPrior]:
    """Return the prior of every constant. Raise SpecError if one in `priors.yaml` lacks a key."""
    topics = read(FILE).value
    families = {f"{name}:{family}": _prior(f"families.{name}", body) for name, body in topics["families"].items() for family in FAMILIES}
    return {name: _prior(f"constants.{name}", body) for name, body in topics["constants"].items()} | families


def defaults() -> dict[str, float]:
    """Return the constants before any fit."""
    return {name: prior.value for name, prior in priors().items()}


def _prior(name: str, body: Mapping[str, Any]) -> ConstantPrior:
    if set(body) != {"value", "width", "meaning"} or not body["meaning"]:
        raise SpecError(f"{FILE.name}: {name}: must have exactly 'value', 'width' and 'meaning'")
    return ConstantPrior(float(body["value"]), float(body["width"]))
