"""What are the layers of a decoder with a given shape? The layer table of one sample, from a dozen numbers.

The table contains fused operators, as in Megatron-LM with Transformer Engine and in compiled torch: q, k and v are one product, gate and
up are one product; norms, rotary positions, activations, residuals and attention are one kernel each. Eager stacks run more kernels and
passes, which ``kernels_per_operator`` and ``elementwise_traffic`` account for. Bytes are for 4-byte elements (see ``Layer``).

Causal attention counts half of the square, an encoder's all; with a window, only the keys inside it or inside the chunk. Backward of
fused attention has five products to forward's two, because it recomputes the scores (Dao et al., arXiv 2205.14135); `model_flop` leaves the
fifth out.
Saved bytes follow Korthikanti et al. (arXiv 2205.05198, section 4) with fused attention; one-byte masks of dropout count in 16 bits.
Limits: no cross-attention, no capacity limits of experts; partial rotary dimensions and ALiBi cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from sim.spec.decoder_rows import FLOAT, DecoderRows
from sim.spec.fields import SCANS
from sim.spec.layer import Attention, Layer, TensorShare
from sim.spec.state_space import scan_layers, short_convolution
from sim.spec.transformer import DeltaNet, Mamba, Transformer

_DISPATCH_KERNELS: Final = (6, 2)
"""Kernels of softmax, top-k, counts, sort and permutation, forward and backward: estimate (Megatron-LM transformer/moe/router.py and
token_dispatcher.py with fused permutation)."""

_SCANNED: Final = {"M": "mamba", "G": "delta"}
"""Names of state spaces in the table, by their letter."""


def attended_pairs(sequence: float, window: int = 0, chunked: bool = False, causal: bool = True) -> float:
    """Return the number of query-key pairs in causal attention over *sequence* tokens: half the square, minus what a window excludes.

    If *chunked*, the sequence is cut into chunks of *window* tokens, of which the last may be shorter. The diagonal counts half. If not
    *causal*, twice as many: a window reaches as far ahead as back.
    """
    if not causal:
        return 2.0 * attended_pairs(sequence, window)
    span = min(window, sequence) if window else sequence
    if chunked and window:
        chunks, rest = divmod(sequence, window)
        return (chunks * window**2 + rest**2) / 2
    return span * sequence - span**2 / 2


def model_flop(layers: Sequence[Layer]) -> float:
    """Return the FLOP of products required to train on one sample, without recomputation and with only the causal half of attention.

    If all weights are trained, this is three times forward: ``6 P_matmul + 6 L s h`` per token.
    """
    return sum(
        layer.forward + (2.0 * layer.forward if layer.op in ("attention", *SCANS) and layer.backward else layer.backward)
        for layer in layers
    )


@lru_cache(maxsize=128)
def decoder_layers(transformer: Transformer, sequence: int) -> tuple[Layer, ...]:
    """Return the layer table of *transformer* for samples of *sequence* tokens, in forward order.

    Blocks of one kind have the same numbers; letters of a pattern that are one layer share a name. Raise ValueError if the sequence is
    longer than ``max_seq``.
    """
    if transformer.max_seq is not None and sequence > transformer.max_seq:
        raise ValueError(
            f"sequence ({sequence}) exceeds the model's {transformer.max_seq} positions; write sequence: {transformer.max_seq} or less"
        )
    table = _DecoderTable(transformer, sequence)
    layers = list(table.embedding())
    kinds: dict[tuple[str, int], list[Layer]] = {}
    for number in range(transformer.layers):
        kind = transformer.mixers(number), transformer.window_of(number)
        if kind not in kinds:
            kinds[kind] = list(table.block(*kind))
        layers += _named(kinds[kind], f"layers.{number // transformer.letters_per_block}.")
    for number in range(transformer.layers, transformer.layers + transformer.prediction_layers):
        kind, name = (transformer.mixers(number), transformer.window_of(number)), number - transformer.layers + transformer.block_count
        layers += _named([*table.prediction(), *table.block(*kind), *table.end(tied=True)], f"layers.{name}.")
    return (*layers, *table.end())


def parameter_count(transformer: Transformer) -> int:
    """Return the number of parameters of *transformer*: the elements of all its layers' tensors."""
    table = _DecoderTable(transformer, 1)
    total, kinds = _elements([*table.embedding(), *table.end()]), dict[str, int]()
    for number in range(transformer.layers + transformer.prediction_layers):
        mixers = transformer.mixers(number)
        kinds[mixers] = kinds.get(mixers) or _elements(table.block(mixers, 0))
        total += kinds[mixers]
    return total + transformer.prediction_layers * _elements([*table.prediction(), *table.end(tied=True)])


def _elements(layers: Iterable[Layer]) -> int:
    return sum(sum(layer.gradients) for layer in layers)


def _named(layers: Sequence[Layer], prefix: str) -> list[Layer]:
    return [layer.model_copy(update={"name": prefix + layer.name}) for layer in layers]


class _DecoderTable(DecoderRows):
    """The table of one decoder for one sequence length."""

    def embedding(self) -> Iterator[Layer]:
        """Yield the layers that turn tokens into the residual stream."""
        shape = self.shape
        yield self.lookup("tokens", shape.vocab, "vocabulary")
        if shape.positions == "learned":
            yield self.lookup("positions", shape.max_seq or self.tokens, "sequence")
        if shape.embedding_norm:
            yield self.norm("embedding_norm", shape.hidden)

    def block(self, mixers: str, window: int) -> Iterator[Layer]:
        """Yield the layers of one block of *mixers* (letters of ``Transformer.pattern``), with names that lack its number."""
        for mixer in mixers:
            if mixer in "MG":
                yield from self._state_space(mixer)
            elif mixer == "*":
                yield from self._attention(window)
            elif mixer == "P":
                yield from self._beside(window)
            elif mixer == "C":
                yield from self._short_convolution()
            else:
                yield from self._feed_forward(experts=mixer == "E")

    def _attention(self, window: int) -> Iterator[Layer]:
        shape = self.shape
        yield self.norm("attention_norm", shape.hidden)
        yield from self._attention_branch(window)
        if shape.norms_per_layer == 4:
            yield self.norm("post_attention_norm", shape.hidden)
        yield self.residual("attention.residual")

    def _attention_branch(self, window: int) -> Iterator[Layer]:
        """Yield attention between its norm and the sum with the stream."""
        shape = self.shape
        yield from self._latent_projections() if shape.mla is not None else self._projections()
        yield self._core(window)
        width = shape.heads * shape.value_size
        if shape.attention_gate:
            yield self.gate("attention.gate", width, "sigmoid")
        # attention saves its result, but not the product with its gate
        saves, biased = shape.attention_gate, shape.has_bias("output")
        yield self.product("attention.output", width, shape.hidden, "rowwise", bias=biased, saves=saves, casts=0)

    def _beside(self, window: int) -> Iterator[Layer]:
        """Yield attention and Mamba-2 on the same normed input, and the sum of both with the stream (arXiv 2507.22448, section 2)."""
        yield self.norm("attention_norm", self.shape.hidden)
        yield from self._attention_branch(window)
        yield from self._scan_branch("M", saves=False)
        yield self.residual("attention.residual", terms=3)

    def _feed_forward(self, experts: bool) -> Iterator[Layer]:
        shape = self.shape
        if shape.norms_per_layer > 1:
            yield self.norm("ffn_norm", shape.hidden)
        if experts:
            yield from self._routed()
        else:
            # in a parallel block with one norm, the fused q, k, v product already saves this input
            yield from self._feed("feed", shape.inner, saves=shape.norms_per_layer > 1)
        if shape.norms_per_layer == 4:
            yield self.norm("post_ffn_norm", shape.hidden)
        yield self.residual("feed.residual", terms=3 if experts and shape.shared_experts else 2)

    def end(self, tied: bool = False) -> Iterator[Layer]:
        """Yield the last norm, the head and the loss."""
        shape = self.shape
        yield self.norm("norm", shape.hidden)
        head = self.product("head", shape.hidden, shape.vocab, "colwise", bias=shape.head_bias)
        if shape.tied or tied:
            shared = "tokens" if shape.tied else "head"
            head = head.model_copy(update={"gradients": head.gradients[:-1], "shares": shared})
        yield head
        logits = FLOAT * self.tokens * shape.vocab
        yield Layer.model_construct(
            name="loss",
            op="loss",
            arithmetic=5.0 * self.tokens * shape.vocab,
            backward_arithmetic=3.0 * self.tokens * shape.vocab,
            read=logits,
            write=logits,
            backward_traffic=4.0 * logits,  # zeros and one element per row, then softmax: two reads and a write
            saved=logits,
            forward_kernels=2,
            backward_kernels=2,
            casts=self.tokens * shape.vocab,
            share="heads",
            tokens=self.tokens,
        )

    def prediction(self) -> Iterator[Layer]:
        """Yield the layers that join the stream with the embedding of a later token (DeepSeek-V3, arXiv 2412.19437, equation 21)."""
        shape = self.shape
        yield self.norm("hidden_norm", shape.hidden)
        yield self.norm("embedding_norm", shape.hidden)
        yield self.product("projection", 2 * shape.hidden, shape.hidden, "replicated")

    # --- attention -----------------------------------------------------------------------------------------------------

    def _projections(self) -> Iterator[Layer]:
        shape = self.shape
        queries, keys = shape.heads * shape.head_size, shape.groups * shape.head_size
        columns = queries * (1 + shape.attention_gate) + 2 * keys
        yield self.product("attention.qkv", shape.hidden, columns, "colwise", bias=shape.has_bias("qkv"), casts=self.input_casts(3))
        if shape.qk_norm != "none":
            weights = {"head": (shape.head_size,) * 2, "all": (queries, keys), "weightless": ()}[shape.qk_norm]
            norm = self.norm("attention.qk_norm", queries + keys, "per_head" if shape.qk_norm == "head" else "heads")
            yield norm.model_copy(update={"gradients": weights, "forward_kernels": 2, "backward_kernels": 2 * norm.backward_kernels})
        if shape.positions == "rope":
            yield self.rope(queries + keys)

    def _latent_projections(self) -> Iterator[Layer]:
        shape, mla = self.shape, self.shape.mla
        assert mla is not None
        queries = shape.heads * shape.head_size
        if mla.q_rank:
            yield self.product("attention.q_down", shape.hidden, mla.q_rank, "replicated")
            yield self.norm("attention.q_norm", mla.q_rank, "replicated")
            yield self.product("attention.q_up", mla.q_rank, queries, "colwise")
        else:
            yield self.product("attention.q", shape.hidden, queries, "colwise")
        # the first product has saved this input
        yield self.product("attention.kv_down", shape.hidden, mla.kv_rank + mla.rope_dim, "replicated", saves=False)
        yield self.norm("attention.kv_norm", mla.kv_rank, "replicated")
        yield self.product("attention.kv_up", mla.kv_rank, shape.heads * (mla.nope_dim + mla.value_dim), "colwise")
        # rotary parts are joined with the others: q and k of all heads are written again
        yield self.rope(2 * queries)

    def _core(self, window: int) -> Layer:
        shape, tokens = self.shape, self.tokens
        queries, keys, values = shape.heads * shape.head_size, shape.groups * shape.head_size, shape.groups * shape.value_size
        results = shape.heads * shape.value_size
        pairs = 2.0 * shape.heads * attended_pairs(tokens, window, shape.chunked, shape.causal)
        inputs, output = FLOAT * tokens * (queries + keys + values), FLOAT * tokens * results
        statistics = 2 * FLOAT * tokens * shape.heads  # the logarithm of each row's sum stays in FP32 if activations have 16 bits
        return Layer.model_construct(
            name="attention.core",
            op="attention",
            gradients=(shape.heads,) if shape.sinks else (),
            forward=pairs * (shape.head_size + shape.value_size),
            backward=pairs * (3 * shape.head_size + 2 * shape.value_size),
            read=inputs,
            write=output + statistics,
            backward_traffic=2.0 * (inputs + output + statistics),
            saved=inputs + output + statistics,
            casts=tokens * (queries + keys) if shape.positions == "rope" or shape.qk_norm in ("head", "all") else 0,
            backward_kernels=2,
            share="heads",
            attention=Attention(
                heads=shape.heads,
                kv_heads=shape.groups,
                head_dim=shape.head_size,
                value_dim=shape.value_size if shape.value_size != shape.head_size else None,
                queries=tokens,
                keys=tokens,
                causal=shape.causal,
                sinks=shape.sinks,
                window=window if window < tokens else 0,
                chunked=shape.chunked and 0 < window < tokens,
            ),
        )

    # --- state spaces --------------------------------------------------------------------------------------------------

    def _state_space(self, mixer: str) -> Iterator[Layer]:
        name = _SCANNED[mixer]
        yield self.norm(f"{name}_norm", self.shape.hidden)
        yield from self._scan_branch(mixer)
        yield self.residual(f"{name}.residual")

    def _scan_branch(self, mixer: str, saves: bool = True) -> Iterator[Layer]:
        """Yield a state space between its norm and the sum with the stream; *saves*: whether it saves its input."""
        shape, name = self.shape, _SCANNED[mixer]
        layer = shape.mamba if mixer == "M" else shape.delta_net
        assert layer is not None
        yield self.product(f"{name}.input", shape.hidden, layer.inner + layer.channels + layer.steps, "colwise", saves=saves)
        yield from scan_layers(layer, name, self.tokens, FLOAT)
        if isinstance(layer, Mamba) and not layer.norm:
            yield self.gate(f"{name}.gate", layer.inner, "swiglu")
        else:
            yield self._gated_norm(f"{name}.norm", layer)
        yield self.product(f"{name}.output", layer.inner, shape.hidden, "rowwise", casts=0)

    def _gated_norm(self, name: str, layer: Mamba | DeltaNet) -> Layer:
        """Return the norm of a scan's result, which its gate multiplies."""
        weights: tuple[int, TensorShare] = (layer.value_dim, "per_head") if isinstance(layer, DeltaNet) else (layer.inner, "heads")
        norm, gate = self.norm(name, layer.inner, weights[1]), FLOAT * self.tokens * layer.inner
        return norm.model_copy(
            update={"gradients": weights[:1], "read": norm.read + gate, "saved": norm.saved + gate}
            | {"backward_traffic": norm.backward_traffic + 2.0 * gate}
        )

    def _short_convolution(self) -> Iterator[Layer]:
        shape = self.shape
        assert shape.short_conv is not None
        yield self.norm("conv_norm", shape.hidden)
        yield self.product("conv.input", shape.hidden, 3 * shape.hidden, "colwise")
        yield from short_convolution(shape.hidden, shape.short_conv, self.tokens, FLOAT)
        yield self.product("conv.output", shape.hidden, shape.hidden, "rowwise", casts=0)
        yield self.residual("conv.residual")

    # --- feed-forward --------------------------------------------------------------------------------------------------

    def _feed(self, name: str, inner: int, saves: bool = True) -> Iterator[Layer]:
        """Yield a plain feed-forward block of width *inner*; *saves*: whether it saves its input (false if another layer does)."""
        shape = self.shape
        biased = self.shape.has_bias("ffn")
        yield self.product(
            f"{name}.gate_up", shape.hidden, inner * (1 + shape.gated), "colwise", bias=biased, saves=saves, casts=self.input_casts(2)
        )
        yield self.activation(f"{name}.activation", inner, self.tokens, "heads")
        yield self.product(f"{name}.down", inner, shape.hidden, "rowwise", bias=biased, casts=0)

    def _routed(self) -> Iterator[Layer]:
        """Yield the router, the experts and the shared experts of one block. Weights of tokens are applied inside the activation."""
        shape = self.shape
        inner = shape.expert_ffn or shape.inner
        rows, width = self.tokens * shape.experts_per_token, shape.routed_width
        stream = FLOAT * self.tokens * width
        copies = stream * shape.experts_per_token
        biased = self.shape.has_bias("ffn")
        yield self.product("router", shape.hidden, shape.experts, "replicated", bias=biased)
        if shape.shared_experts:
            yield from self._feed("shared", shape.shared_expert_ffn or shape.shared_experts * inner, saves=False)
        if shape.expert_latent:
            yield self.product("experts_down", shape.hidden, width, "sequence", saves=False)
        yield Layer.model_construct(
            name="experts.dispatch",
            op="elementwise",
            read=stream,
            write=copies,
            backward_traffic=copies + stream,
            forward_kernels=_DISPATCH_KERNELS[0],
            backward_kernels=_DISPATCH_KERNELS[1],
            share="expert",
        )
        yield self.product("experts.gate_up", width, inner * (1 + shape.gated), "expert", bias=biased, rows=rows, casts=self.input_casts(2))
        yield self.activation("experts.activation", inner, rows, "expert")
        yield self.product("experts.down", inner, width, "expert", bias=biased, rows=rows, casts=0)
        yield Layer.model_construct(
            name="experts.combine",
            op="elementwise",
            arithmetic=copies / FLOAT,
            read=copies,
            write=stream,
            backward_traffic=copies + stream,
            share="expert",
        )
        if shape.expert_latent:
            yield self.product("experts_up", width, shape.hidden, "sequence")
