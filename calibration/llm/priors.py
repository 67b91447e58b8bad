"""Which constants does the closed form have, and what are their priors? Rates of hardware, and of software families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Constants = Mapping[str, float]

PRIORS: Final[Mapping[str, tuple[float, float]]] = {
    # name: value before any fit, standard deviation of its logarithm
    "product.volta": (0.70, 0.15), "product.ampere": (0.80, 0.1), "product.hopper": (0.70, 0.1), "product.blackwell": (0.72, 0.1),
    "product.cdna3": (0.50, 0.15), "product.cdna4": (0.50, 0.2), "product.ada": (0.60, 0.2),
    "product.fp8": (0.85, 0.15), "product.fp4": (0.65, 0.2), "depth": (160.0, 0.5), "unaligned": (1.15, 0.08),
    "unaligned.head": (1.6, 0.3), "attention.forward": (0.62, 0.15), "attention.backward": (0.50, 0.15),
    "scores": (9.0, 0.4), "memory": (0.80, 0.1), "wide": (17.0, 0.3), "inner": (1.0, 0.2), "head": (26.0, 0.3), "cast": (1.0, 0.4),
    "fabric": (0.75, 0.15), "network": (0.70, 0.2), "hop.fabric": (2e-6, 0.4), "hop.network": (8e-6, 0.5),
    "launch.collective": (25e-6, 0.5),
    "kernel": (4e-6, 0.3), "host": (5e-4, 0.3),
    "host.experts": (2e-3, 0.7), "update": (34.0, 0.3), "accumulate": (6.0, 0.4), "host.eager": (1.2e-3, 0.5),
    "attention.eager": (0.65, 0.2), "elementwise.eager": (1.8, 0.3), "dispatch": (0.45, 0.4), "moe.traffic": (14.0, 0.4),
    "experts": (1.2, 0.2), "sync.experts": (1e-4, 0.6), "contention": (1.06, 0.05), "step": (5e-3, 0.5),
    "exposed.tensor": (0.85, 0.2), "exposed.tensor.overlap": (0.45, 0.4), "exposed.data": (0.5, 0.5), "exposed.stages": (0.7, 0.5),
    "check.message": (77e-6, 0.4),
    "exposed.context": (0.3, 0.5), "power.fp8": (1.0, 0.1), "ramp": (1.0, 0.1),
}  # fmt: skip
"""Physical constants: shares of peaks, bytes per element, seconds. Priors are estimates, at the level of datasheets."""
FAMILIES: Final = ("megatron", "megatron-2021", "deepspeed", "nanotron", "fsdp1", "fsdp2", "jax", "llmc")
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
FAMILY_PRIORS: Final[Mapping[str, tuple[float, float]]] = {"elementwise": (1.0, 0.25), "compute": (1.0, 0.08), "data": (1.0, 0.5)}
"""Factors of one software family on element-wise bytes, all compute and exposed data-parallel traffic; shrunk toward 1."""


def priors() -> dict[str, tuple[float, float]]:
    """Return, for every constant, the value before any fit and the standard deviation of its logarithm."""
    all_priors = dict(PRIORS)
    for family in FAMILIES:
        for name, prior in FAMILY_PRIORS.items():
            all_priors[f"{name}:{family}"] = prior
    return all_priors


def defaults() -> dict[str, float]:
    """Return the constants before any fit."""
    return {name: value for name, (value, _) in priors().items()}
