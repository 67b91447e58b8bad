"""What shape does a decoder have? Its sizes in the words of Hugging Face's and Megatron-LM's configurations, checked against each other.

The layer table of a sample follows from it (`sim.spec.decoder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import model_validator

from sim.spec.fields import Count, Depth, Fraction, Share, Spec, Whole

Activation = Literal["gelu", "relu", "relu2", "silu", "swiglu", "geglu", "reglu"]
Norm = Literal["layernorm", "rmsnorm", "nonparametric"]

GATED: Final = ("swiglu", "geglu", "reglu")
"""Activations of two inputs, one of which gates the other."""


class Mla(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): sizes of the latent vectors and of a head's parts."""

    q_rank: Whole = 0
    """Size of the latent query; 0: queries are projected directly."""
    kv_rank: Count
    """Width to which keys and values are compressed."""
    nope_dim: Count
    """Part of a query's and key's head without positions."""
    rope_dim: Count
    """Part with rotary positions."""
    value_dim: Count
    """Size of a value's head."""


class Transformer(Spec):
    """Shape of a decoder. Sizes are elements; words are those of Hugging Face's and Megatron-LM's configurations."""

    layers: Depth
    """Blocks."""
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Heads of queries."""
    kv_heads: Count | None = None
    """Heads of keys and values (grouped-query attention); None: as many as ``heads``."""
    head_dim: Count | None = None
    """None: ``hidden / heads``."""
    ffn: Count | None = None
    """Width inside the feed-forward block; None: four times ``hidden``, where the activation is not gated."""
    vocab: Count
    """Rows of the embedding, padding included."""
    activation: Activation = "swiglu"
    """Of the feed-forward block; swiglu, geglu and reglu are gated."""
    norm: Norm = "rmsnorm"
    """nonparametric: a layer norm without weights."""
    norm_bias: bool | None = None
    """None: layernorm has one, the others have none."""
    norm_epsilon: Fraction | None = None
    """What norms add to the variance; no step depends on it, launch files of other programs hold it. None: not told."""
    positions: Literal["rope", "learned", "alibi", "none"] = "rope"
    """How tokens know their place."""
    rope_base: Count | None = None
    """Base of the wavelengths of rotary positions; no step depends on it, launch files of other programs hold it. None: not told."""
    rope_share: Share = 1.0
    """Share of a head's elements that rotary positions turn; no step depends on it."""
    max_seq: Count | None = None
    """Most tokens of a sequence; rows of the table where positions are learned."""
    tied: bool = False
    """The head uses the embedding's table."""
    bias: Literal["none", "all", "qkv", "qkv_output", "ffn"] = "none"
    """Which products of blocks have a bias."""
    head_bias: bool = False
    """Whether the product with the vocabulary has a bias."""
    qk_norm: Literal["none", "head", "all", "weightless"] = "none"
    """Norms of queries and keys: one weight for each element of a head, for all elements, or none."""
    clamped: bool = False
    """Whether experts clamp what enters their activation (gpt-oss)."""
    sinks: bool = False
    """Each head has a learned attention sink."""
    norms_per_layer: Literal[1, 2, 4] = 2
    """1: both halves of a block share one; 2: one before each; 4: before and after each."""
    parallel: bool = False
    """Attention and feed-forward block work side by side on the same input; with one norm a layer they share it."""
    embedding_norm: bool = False
    """Whether a norm follows the embedding."""
    window: Whole = 0
    """Tokens that each token looks back on; 0: all."""
    global_every: Whole = 0
    """With a window: each n-th layer looks back on all; 0: none does."""
    dropout: Fraction = 0.0
    """Rate of dropout after the embedding and before each residual. That of attention's probabilities is part of its kernel."""
    composed_gelu: bool = False
    """Code of Hugging Face transformers writes GELU as eight operators (``gelu_new``), which its eager classes run one by one."""
    experts: Whole = 0
    """Experts of a layer, of which each token takes some; 0: a dense model."""
    experts_per_token: Whole = 0
    """Experts that each token goes to."""
    expert_ffn: Count | None = None
    """None: ``ffn``."""
    shared_experts: Whole = 0
    """Experts that every token goes to, beside those."""
    shared_expert_ffn: Count | None = None
    """Of all shared experts together; None: ``shared_experts * expert_ffn``."""
    first_dense_layers: Whole = 0
    """Layers before the first one with experts."""
    moe_every: Count = 1
    """Each n-th layer has experts."""
    prediction_layers: Whole = 0
    """Further blocks at the end that predict later tokens (DeepSeek-V3's multi-token prediction); they share embedding and head."""
    mla: Mla | None = None
    """Multi-head latent attention (DeepSeek)."""

    @model_validator(mode="after")
    def _agrees(self) -> Transformer:
        for contradicts, sentence in self._contradictions():
            if contradicts:
                raise ValueError(sentence)
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield whether sizes contradict each other in some way, and the sentence that says so."""
        size, heads = self.hidden, self.heads
        yield (
            self.head_dim is None and self.mla is None and size % heads > 0,
            (f"hidden ({size}) is not a multiple of heads ({heads}); write head_dim, or hidden: {-(-size // heads) * heads}"),
        )
        yield (
            heads % (self.kv_heads or heads) > 0,
            f"heads ({heads}) is not a multiple of kv_heads ({self.kv_heads}); write kv_heads: {heads}",
        )
        yield self.ffn is None and self.gated and self._dense, f"activation {self.activation} needs ffn; write it, such as ffn: {4 * size}"
        yield self.positions == "learned" and self.max_seq is None, "learned positions need max_seq, the rows of their table; write it"
        yield self.experts > 0 and not self.experts_per_token, "experts need experts_per_token; write it, such as experts_per_token: 2"
        yield (
            self.experts_per_token > self.experts,
            (f"experts_per_token ({self.experts_per_token}) is above experts ({self.experts}); write {self.experts} or less"),
        )
        yield self.experts > 0 and not (self.expert_ffn or self.ffn), "experts need expert_ffn or ffn; write the width inside one expert"
        yield self.shared_experts > 0 and not self.experts, "shared_experts without experts; write experts, or shared_experts: 0"
        yield (
            self.experts > 0 and self.first_dense_layers >= self.layers,
            (f"first_dense_layers ({self.first_dense_layers}) leaves no layer of {self.layers} with experts; write fewer"),
        )
        yield self.global_every > 0 and not self.window, "global_every without a window; write window, or global_every: 0"
        yield (
            self.composed_gelu and self.activation != "gelu",
            f"composed_gelu with activation {self.activation}; write activation: gelu, or composed_gelu: false",
        )
        yield self.norms_per_layer == 1 and not self.parallel, "one norm a layer is for parallel blocks; write parallel: true"

    @property
    def _dense(self) -> bool:
        """Whether some layer has a plain feed-forward block."""
        return not all(self.has_experts(layer) for layer in range(self.layers))

    @property
    def gated(self) -> bool:
        """Whether the activation has two inputs."""
        return self.activation in GATED

    @property
    def head_size(self) -> int:
        """Elements of one head of queries and keys."""
        if self.mla is not None:
            return self.mla.nope_dim + self.mla.rope_dim
        return self.head_dim or self.hidden // self.heads

    @property
    def value_size(self) -> int:
        """Elements of one head of values."""
        return self.mla.value_dim if self.mla is not None else self.head_size

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.mla is not None else self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        """Width inside a plain feed-forward block."""
        return self.ffn or 4 * self.hidden

    def has_experts(self, layer: int) -> bool:
        """Return whether the block of number *layer*, from 0 on, has experts."""
        return self.experts > 0 and layer >= self.first_dense_layers and (layer + 1) % self.moe_every == 0

    def window_of(self, layer: int) -> int:
        """Return how many tokens a token of the block of number *layer* looks back on; 0 for all."""
        return 0 if self.global_every and (layer + 1) % self.global_every == 0 else self.window
