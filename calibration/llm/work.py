"""How long does one rank compute for a micro-batch? Products by shape, attention, and memory passes, layer by layer."""

from __future__ import annotations

import math

from calibration.llm.case import Case
from calibration.llm.chips import BEFORE_AMPERE
from calibration.llm.priors import EAGER_FAMILIES, Constants
from sim.cluster.kernels import indexed_time
from sim.cluster.quantizing import operand_bytes
from sim.parallel.routing import BIAS_PASSES, BIAS_PASSES_FP32, CLAMP_PASSES, ROTATION_PASSES, PassCount, padded_bytes
from sim.spec.decoder import attended_pairs
from sim.spec.state_space import scan_cost
from sim.spec.transformer import DeltaNet, Mamba


class StepWork:
    """One micro-batch of one rank, from the shapes of *case* and the rates in *constants*."""

    def __init__(self, case: Case, constants: Constants) -> None:
        self.case, self.constants = case, constants
        self.chip = case.chip
        self.tokens = case.micro_batch * case.seq / case.context
        self.held_tokens = self.tokens / (case.tensor if case.sequence_parallel else 1)
        eager = case.family in EAGER_FAMILIES and not case.is_compiled
        self.elementwise = constants[f"elementwise:{case.family}"] * (constants["elementwise.eager"] if eager else 1.0)
        share, peak, board = constants.get(f"product.{self.chip.generation}", 0.6), self.chip.peak, self.chip.board
        self.peak16 = peak["16bit"] * board.get("16bit", 1.0)
        self.rate = self.rate16 = self.peak16 * share
        if case.precision != "16bit":
            own_peak = peak[case.precision] * board.get(case.precision, 1.0)
            self.rate = own_peak * share * constants[f"product.{case.precision}"] * case.recipe_rate
        self.bandwidth = self.chip.memory_bandwidth * constants["memory"]

    def product(self, rows: float, inner: float, columns: float, groups: float = 1.0, narrow: bool = True) -> float:
        """Return the seconds of *groups* products of (rows x inner) by (inner x columns)."""
        if rows <= 0:
            return 0.0
        rate = self.rate if narrow else self.rate16
        tiles = groups * math.ceil(rows / 128) * math.ceil(columns / 128)
        waves = tiles / self.chip.multiprocessors
        full = 0.5 * (math.ceil(waves) + max(waves, 1.0)) / waves
        padded = math.ceil(rows / 128) * 128 / rows
        depth = 1 + self.constants["depth"] / inner
        if inner % 64 or columns % 64:
            depth *= self.constants["unaligned"]
        flop = 2.0 * rows * inner * columns * groups
        moved = 2.0 * (rows * inner + inner * columns + rows * columns) * groups / self.bandwidth
        return max(flop * depth * max(full, padded) / rate, moved) + self.constants["kernel"]

    def memory_passes(self, passes: float, tokens: float, elements: float) -> float:
        """Return the seconds of *passes* memory passes over 16-bit activations of *tokens* by *elements*."""
        return passes * 2.0 * tokens * elements * self.elementwise / self.bandwidth

    def attention_products(self) -> float:
        """Return the seconds of the projections around attention."""
        return self.attention_inputs() + self.attention_output()

    def attention_output(self) -> float:
        """Return the seconds of the projection after attention."""
        shape = self.case.shape
        width = shape.mla.value_dim if shape.mla is not None else shape.value_size
        return self.product(self.tokens, shape.heads * width / self.case.tensor, shape.hidden)

    def attention_inputs(self) -> float:
        """Return the seconds of the projections before attention."""
        shape, case = self.case.shape, self.case
        hidden, tensor, rows = shape.hidden, case.tensor, self.tokens
        queries = shape.heads * shape.head_size * (1 + shape.attention_gate)
        if shape.mla is not None:
            latent = shape.mla
            down = self.product(rows, hidden, latent.kv_rank + latent.rope_dim) + (
                self.product(rows, hidden, latent.q_rank) if latent.q_rank else 0
            )
            return down + self.latent_up()
        keys = shape.groups * (shape.head_size + shape.value_size)
        return self.product(rows, hidden, (queries + max(keys, shape.head_size * 2 * tensor if tensor > shape.groups else keys)) / tensor)

    def latent_up(self) -> float:
        """Return the seconds of the projections out of the latents of attention; 0 for attention without latents."""
        shape, tensor, latent = self.case.shape, self.case.tensor, self.case.shape.mla
        if latent is None:
            return 0.0
        up = self.product(self.tokens, latent.q_rank or shape.hidden, shape.heads * shape.head_size / tensor)
        return up + self.product(self.tokens, latent.kv_rank, shape.heads * (latent.nope_dim + latent.value_dim) / tensor)

    def dense(self) -> float:
        """Return the seconds of a plain feed-forward block's products."""
        return self.dense_up() + self.dense_down()

    def dense_down(self) -> float:
        """Return the seconds of the product after a plain feed-forward block's activation."""
        return self.product(self.tokens, self.case.shape.inner / self.case.tensor, self.case.shape.hidden)

    def dense_up(self) -> float:
        """Return the seconds of the products before a plain feed-forward block's activation."""
        shape = self.case.shape
        return self.product(self.tokens, shape.hidden, shape.inner * (2 if shape.gated else 1) / self.case.tensor)

    def experts(self) -> float:
        """Return the seconds of one rank's experts, router and shared expert."""
        shape, case = self.case.shape, self.case
        inner = float(shape.expert_ffn or shape.inner)
        local = max(1.0, shape.experts / case.expert)
        rows = self.held_tokens * shape.experts_per_token / local * (1 if case.expert > 1 or not case.sequence_parallel else case.tensor)
        inner_here = inner if case.expert > 1 else inner / case.tensor
        gates = 2 if shape.gated else 1
        width = shape.routed_width
        total = self.product(rows, width, inner_here * gates, local) + self.product(rows, inner_here, width, local)
        total *= self.constants["experts"]
        if shape.expert_latent:
            total += self.product(self.held_tokens, shape.hidden, width) + self.product(self.held_tokens, width, shape.hidden)
        shared = float(shape.shared_expert_ffn or shape.shared_experts * inner)
        if shared:
            total += self.product(self.tokens, shape.hidden, shared * gates / case.tensor)
            total += self.product(self.tokens, shared / case.tensor, shape.hidden)
        return total + self.product(self.held_tokens, shape.hidden, shape.experts, narrow=False)

    def attention_core(self, layer: int, backward: bool) -> float:
        """Return the seconds of attention itself, which is causal, inside each document of a packed sequence."""
        shape, case = self.case.shape, self.case
        heads = shape.heads / case.tensor
        keys = case.document_tokens or case.seq
        span = attended_pairs(keys, shape.window_of(layer), shape.chunked) / keys
        flop = 2.0 * self.tokens * span * heads * (shape.head_size + shape.value_size)
        if case.flash:
            share = self.constants["attention.backward" if backward else "attention.forward"]
            old = self.chip.generation in ("ampere", *BEFORE_AMPERE)
            share *= 1.0 if old or case.family not in EAGER_FAMILIES else self.constants["attention.eager"]
            share *= 1.25 if old else 1.0
            share *= min(1.0, shape.head_size / 128 + 0.25)
            return (2.5 if backward else 1.0) * flop / (self.peak16 * share) + 2 * self.constants["kernel"]
        scores = self.tokens * case.seq * heads * 2.0 * self.constants["scores"] / self.bandwidth
        slow = self.constants["unaligned.head"] if shape.head_size % 8 else 1.0
        return slow * (2.0 if backward else 1.0) * (2 * flop / (self.rate16 * 0.6)) + scores * (1.0 if backward else 0.8)

    def state_space_products(self, layer: Mamba | DeltaNet | None) -> float:
        """Return the seconds of the projections around the scan of a state-space *layer*."""
        hidden, tensor = self.case.shape.hidden, self.case.tensor
        if layer is None:
            return 0.0
        inputs = self.product(self.tokens, hidden, (layer.inner + layer.channels + layer.steps) / tensor)
        return inputs + self.product(self.tokens, layer.inner / tensor, hidden)

    def scan(self, layer: Mamba | DeltaNet | None, backward: bool) -> float:
        """Return the seconds of the scan of a state-space *layer* and of the passes around it, as the simulator counts them."""
        kernels = self.case.gpu.kernels
        if layer is None:
            return 0.0
        tokens, cost = self.tokens / self.case.tensor, scan_cost(layer)
        moved = 2.0 * tokens * cost.elements[backward] / self.bandwidth
        products = tokens * cost.flop[backward] / (kernels.scan_rate * kernels.sm_count) if kernels is not None else 0.0
        passes = 2.0 * layer.channels + 3.0 * layer.inner  # the convolution, and the gated norm
        return max(moved, products) + (2.5 if backward else 1.0) * 2.0 * tokens * passes / self.bandwidth

    def hybrid_products(self) -> float:
        """Return the seconds of the products of a hybrid's mean layer, without attention and scans themselves."""
        shape = self.case.shape
        total = shape.share_of("*") * self.attention_products() + shape.share_of("M") * self.state_space_products(shape.mamba)
        total += shape.share_of("G") * self.state_space_products(shape.delta_net)
        return total + shape.share_of("-") * self.dense() + (shape.share_of("E") * self.experts() if shape.experts else 0.0)

    def hybrid_core(self, attention: float, backward: bool) -> float:
        """Return the seconds of attention and scans of a hybrid's mean layer; a layer of *attention* takes that many."""
        shape = self.case.shape
        scans = shape.share_of("M") * self.scan(shape.mamba, backward) + shape.share_of("G") * self.scan(shape.delta_net, backward)
        return shape.share_of("*") * attention + scans

    def hybrid_passes(self) -> float:
        """Return the seconds of norms, residuals, activations and casts of a hybrid's mean layer, forward; each has one norm."""
        shape = self.case.shape
        total = self.memory_passes(self.constants["wide"] / 2, self.held_tokens, shape.hidden) + 5 * self.constants["kernel"]
        total += shape.share_of("-") * self.activation(experts=False)
        if shape.experts:
            total += shape.share_of("E") * (self.activation(experts=True) + self.routed_traffic())
        return total + self.casts(experts=shape.experts > 0) / 2

    def element_wise(self, experts: bool) -> float:
        """Return the seconds of norms, residuals, rotary positions, activation and casts of one layer, forward."""
        total = self.memory_passes(self.constants["wide"], self.held_tokens, self.case.shape.hidden) + self.activation(experts)
        total += self.rotation()
        if experts:
            total += self.routed_traffic()
        return total + self.casts(experts) + 10 * self.constants["kernel"]

    def casts(self, experts: bool) -> float:
        """Return the seconds of quantizing the inputs of one layer's products, forward, counted as in the simulator."""
        shape, case, own = self.case.shape, self.case, self.case.quantizing
        if own is None:
            return 0.0
        gpu, stack = case.gpu, case.stack_file
        inputs = {
            "attention.qkv": float(shape.hidden), "attention.output": shape.heads * shape.value_size / case.tensor,
            "feed.gate_up": float(shape.hidden), "feed.down": self._inner(experts) / case.tensor,
        }  # fmt: skip
        both = not (case.lora or stack.kernels.casts_again)
        fused = [name for name in stack.kernels.fused_casts if not (experts and name.startswith("feed."))]
        moved = sum(elements * operand_bytes(own, gpu, both, name in fused) for name, elements in inputs.items())
        return self.constants["cast"] * self.tokens * moved / self.bandwidth

    def rotation(self) -> float:
        """Return the seconds of rotating one layer's queries and keys outside a fused kernel, forward."""
        shape, case = self.case.shape, self.case
        if not shape.rope_scaled or case.family != "megatron":
            return 0.0
        return self._unfused(ROTATION_PASSES[0], self.tokens * (shape.heads + shape.groups) * shape.head_size / case.tensor)

    def activation(self, experts: bool) -> float:
        """Return the seconds of the activation of one layer's feed-forward block, forward."""
        shape, tokens = self.case.shape, self.tokens / self.case.tensor
        sides = 1.5 if shape.gated else 1.0
        passes = self.memory_passes(3 * self.constants["inner"], tokens, self._inner(experts) * sides)
        if experts and shape.clamped and self.case.family == "megatron":
            passes += self._unfused(CLAMP_PASSES[0], 2.0 * tokens * self._inner(experts))
        return passes

    def routed_traffic(self) -> float:
        """Return the seconds of permuting a layer's tokens to experts and back, of padding them, and of adding biases, forward."""
        shape = self.case.shape
        copies = self.held_tokens * shape.experts_per_token * shape.routed_width
        of_biases = (BIAS_PASSES_FP32 if self.case.one_copy else BIAS_PASSES)[0]
        biased = self._unfused(of_biases, copies) if shape.has_bias("ffn") and self.case.family == "megatron" else 0.0
        padded = 2 * padded_bytes(1.0, self.case.precision != "16bit", self.case.one_copy) if self.case.family == "megatron" else 0.0
        return (self.constants["moe.traffic"] + padded) * 2 * copies / self.bandwidth + biased

    def _unfused(self, passes: PassCount, elements: float) -> float:
        """Return the seconds of *passes* over *elements* elements of 16 bits outside fused kernels."""
        if self.case.gpu.kernels is None:  # not known: a read and a write
            return (passes.moved + 2.0 * passes.indexed) * 2.0 * elements / self.bandwidth
        return passes.moved * 2.0 * elements / self.bandwidth + indexed_time(passes.indexed * elements, self.case.gpu)

    def _inner(self, experts: bool) -> float:
        """Return the inner elements per token of a feed-forward block, over all experts that the token is routed to."""
        shape = self.case.shape
        return float(shape.expert_ffn or shape.inner) * shape.experts_per_token if experts else float(shape.inner)
