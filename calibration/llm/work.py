"""How long does one rank compute for a micro-batch? Layer times of measured kernels, with factors that are fitted to measured steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from calibration.llm.case import Case
from calibration.llm.layer_times import LayerKind, LayerTime, layer_times
from calibration.llm.priors import Constants
from sim.parallel.checkpointing import in_modules, reads_discarded
from sim.parallel.routing import padded_bytes
from sim.parallel.units import UnitKind

BACKWARD_ROUTING: Final = 1.6
"""Passes over copies of tokens of a block's backward, relative to forward: estimate."""


class Passes(NamedTuple):
    """Seconds of a forward and of a backward."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        """Return the seconds of both."""
        return self.forward + self.backward


def total(*passes: Passes) -> Passes:
    """Return the sum of *passes*."""
    return Passes(sum(one.forward for one in passes), sum(one.backward for one in passes))


class HostModules(NamedTuple):
    """Modules of Transformer Engine that the host runs for a mean block (`module_count`), and those among them that quantize."""

    number: float
    quantized: float


class StepWork:
    """One micro-batch of one rank, from the layer times of *case* and the factors in *constants*."""

    def __init__(self, case: Case, constants: Constants) -> None:
        self.case, self.constants = case, constants
        self.held_tokens = case.micro_batch * case.seq / case.context / (case.tensor if case.sequence_parallel else 1)
        self.bandwidth = case.chip.memory_bandwidth * constants["memory"]
        self._times = layer_times(case)
        self._factor = constants[f"compute:{case.family}"]

    def of(self, *kinds: LayerKind) -> Passes:
        """Return the seconds of a mean block's layers of *kinds*."""
        return self._sum("block", lambda name, time: time.kind in kinds)

    @property
    def products(self) -> Passes:
        """Return the seconds of a mean block's products."""
        return self.of("product", "experts")

    @property
    def core(self) -> Passes:
        """Return the seconds of a mean block's attention itself, and of its scan."""
        return self.of("attention", "scan")

    @property
    def plain(self) -> Passes:
        """Return the seconds of a mean block's element-wise layers, and of moving tokens to experts and back."""
        return total(self.of("element-wise"), Passes(self.routing, BACKWARD_ROUTING * self.routing))

    @property
    def ends(self) -> Mapping[UnitKind, Passes]:
        """Return the seconds of what comes before and after the blocks: embeddings, and the last norm, the head and its loss."""
        return {place: self._sum(place, lambda name, time: True) for place in ("first", "last")}

    def modules(self, names: Sequence[str]) -> float:
        """Return the seconds of a forward of a mean block's layers in the Megatron modules *names*, and of copies of what these discard."""
        named = self._modules_of(names)
        routed = self.routing if "moe" in named else 0.0
        copied = sum(time.restored for layer, time in self._times["block"].items() if reads_discarded(layer, named, self._joined))
        again = self._sum("block", lambda layer, time: self._is_in(layer, time, named))
        return routed + self._factor * copied + again.forward

    def host_modules(self, names: Sequence[str] | None = None) -> HostModules:
        """Return how many of Transformer Engine's modules run a mean block; with *names*, only those in these Megatron modules."""
        times = [time for layer, time in self._times["block"].items() if names is None or self._is_in(layer, time, names)]
        return HostModules(sum(time.modules for time in times), sum(time.modules for time in times if time.narrow))

    @property
    def own_norms(self) -> float:
        """Return the number of norms of a mean block that no product's module runs, without those of heads."""
        return self.host_modules(("layernorm",)).number

    def _modules_of(self, names: Sequence[str]) -> list[str]:
        """Return *names* without those that the model lacks, and without attention, which `Case.recompute` covers."""
        return [name for name in names if name != "core_attn" and (self.case.shape.mla is not None or name != "mla_up_proj")]

    @property
    def _joined(self) -> tuple[str, ...]:
        return self.case.stack_file.kernels.fused_casts

    @staticmethod
    def _is_in(layer: str, time: LayerTime, named: Sequence[str]) -> bool:
        """Return whether *layer* belongs to one of the modules *named*; a norm that a product's module runs belongs to none."""
        return any(in_modules(layer, [name]) and (name != "layernorm" or time.modules > 0) for name in named)

    def layer(self, name: str) -> float:
        """Return the seconds of a forward of the layer *name* of a mean block."""
        return self._sum("block", lambda layer, time: layer == name).forward

    def _sum(self, place: UnitKind, is_meant: Callable[[str, LayerTime], bool]) -> Passes:
        forward = backward = 0.0
        for name, time in self._times[place].items():
            if time.kind != "routing" and is_meant(name, time):
                factor = self._factor * self._own_factor(time)
                forward, backward = forward + factor * time.forward, backward + factor * time.backward
        return Passes(forward, backward)

    def _own_factor(self, time: LayerTime) -> float:
        """Return the fitted factor on a layer's time, beside that of all compute."""
        at = self.constants
        if time.kind in ("product", "experts"):
            factor = at.get(f"product.{self.case.chip.generation}", 1.0) * (at[f"product.{time.narrow}"] if time.narrow else 1.0)
            return factor * (1.0 if time.is_aligned else at["unaligned"]) * (at["experts"] if time.kind == "experts" else 1.0)
        if time.kind == "attention":
            return at["unaligned.head"] if not self.case.flash and self.case.shape.head_size % 8 else 1.0
        return 1.0

    @property
    def routing(self) -> float:
        """Return the seconds of permuting a mean block's tokens to experts and back, and of padding them, forward."""
        shape, case = self.case.shape, self.case
        copies = self.held_tokens * shape.experts_per_token * shape.routed_width * shape.share_of("E") if shape.experts else 0.0
        pads = case.family == "megatron" and not case.drops_tokens  # an expert's capacity usually has the rows that 8-bit products need
        padded = 2 * padded_bytes(1.0, case.precision != "16bit", case.one_copy) if pads else 0.0
        return self._factor * (self.constants["moe.traffic"] + padded) * 2 * copies / self.bandwidth
