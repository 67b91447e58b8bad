"""What is the shape of a decoder? Its sizes, named as in Hugging Face's and Megatron-LM's configurations, and checked for consistency.

`sim.spec.decoder` derives the layer table of a sample from it.
"""

from collections.abc import Iterator
from typing import Final, Literal, Self

from pydantic import model_validator

from sim.spec.fields import Count, Depth, Fraction, Share, Spec, Whole

Activation = Literal["gelu", "relu", "relu2", "silu", "xielu", "swiglu", "geglu", "reglu"]
Norm = Literal["layernorm", "rmsnorm", "nonparametric"]

MIXERS: Final = {
    "M": "Mamba-2", "G": "gated delta net", "*": "attention", "-": "feed-forward", "E": "experts", "P": "attention beside Mamba-2",
    "C": "short convolution",
}  # fmt: skip
"""Letters of a hybrid's layers; M, *, - and E are Megatron-LM's."""
_PARTS: Final = {"P": "*MP"}
"""Letters of the parts of a layer that has several side by side, and its own."""
LETTERS: Final = ", ".join(f"{letter} ({kind})" for letter, kind in MIXERS.items())
"""The letters with their meaning, for messages."""
GATED: Final = ("swiglu", "geglu", "reglu")
"""Activations with two inputs, one of which gates the other."""


class Mla(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): sizes of the latent vectors and of the parts of a head."""

    q_rank: Whole = 0
    """Size of the latent query; 0: queries are projected directly."""
    kv_rank: Count
    """Size of the latent vector of keys and values."""
    nope_dim: Count
    """Size of the part of a query or key head without rotary positions."""
    rope_dim: Count
    """Size of the part of a query or key head with rotary positions."""
    value_dim: Count
    """Size of a value head."""


class Mamba(Spec):
    """Sizes of Mamba-2 layers (Dao and Gu, arXiv 2405.21060), named as in Hugging Face's and Megatron-LM's configurations."""

    heads: Count
    """Number of heads; their elements together are the inner width of the layer."""
    head_dim: Count = 64
    """Size of a head."""
    state: Count = 128
    """Size of the state that each element of a head has."""
    groups: Count = 8
    """Number of groups of heads, which share the projections into and out of the state."""
    conv: Count = 4
    """Width of the convolution along the sequence."""
    chunk: Count = 128
    """Number of tokens of a chunk: products inside a chunk are those of attention, states pass from chunk to chunk."""
    norm: bool = True
    """Whether a norm with weights follows the scan and its gate; without it, the gate alone (Falcon-H1's ``mamba_rms_norm: false``)."""

    @property
    def inner(self) -> int:
        """Elements of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: the heads, and the projections into and out of the state."""
        return self.inner + 2 * self.groups * self.state

    @property
    def steps(self) -> int:
        """Elements of a token that set how far the state moves: one a head."""
        return self.heads

    @property
    def scanned_heads(self) -> int:
        """Heads with a state."""
        return self.heads


class DeltaNet(Spec):
    """Sizes of gated delta nets (Yang and others, arXiv 2412.06464), the linear attention of Qwen3-Next and Qwen3.5."""

    key_heads: Count
    """Number of heads of queries and of keys."""
    value_heads: Count
    """Number of heads of values, each with a state."""
    key_dim: Count = 128
    """Size of a query or key head."""
    value_dim: Count = 128
    """Size of a value head."""
    conv: Count = 4
    """Width of the convolution along the sequence."""
    chunk: Count = 64
    """Number of tokens of a chunk."""

    @property
    def inner(self) -> int:
        """Elements of all values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return self.inner + 2 * self.key_heads * self.key_dim

    @property
    def steps(self) -> int:
        """Elements of a token that set how far the state moves: decay and learning rate of each value head."""
        return 2 * self.value_heads

    @property
    def scanned_heads(self) -> int:
        """Heads with a state."""
        return self.value_heads


class Transformer(Spec):
    """Shape of a decoder. Sizes are in elements; names follow Hugging Face's and Megatron-LM's configurations."""

    layers: Depth
    """Number of blocks."""
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Number of query heads."""
    kv_heads: Count | None = None
    """Number of key and value heads (grouped-query attention); None: ``heads``."""
    head_dim: Count | None = None
    """Size of a head; None: ``hidden / heads``."""
    ffn: Count | None = None
    """Width of the feed-forward block; None: four times ``hidden``, allowed only if the activation is not gated."""
    vocab: Count
    """Number of rows of the embedding, including padding."""
    activation: Activation = "swiglu"
    """Activation of the feed-forward block; swiglu, geglu and reglu are gated."""
    norm: Norm = "rmsnorm"
    """Kind of norm; nonparametric is a layer norm without weights."""
    norm_bias: bool | None = None
    """Whether norms have a bias; None: only layernorm has one."""
    norm_epsilon: Fraction | None = None
    """Epsilon of the norms. It has no effect on any simulated time, but is written to launch files of other programs. None: unknown."""
    positions: Literal["rope", "learned", "alibi", "none"] = "rope"
    """Kind of position encoding."""
    rope_base: Count | None = None
    """Base of the rotary positions. It has no effect on any simulated time, but is written to launch files of other programs. None:
    unknown."""
    rope_share: Share = 1.0
    """Fraction of a head's elements with rotary positions. It has no effect on any simulated time."""
    rope_scaled: bool = False
    """Whether rotary positions also multiply queries and keys by a factor (YaRN in gpt-oss), which Megatron's fused kernel cannot do. False
    for latent attention, whose factor is 1."""
    max_seq: Count | None = None
    """Maximum number of tokens in a sequence; with learned positions, the rows of their table. None: no limit."""
    tied: bool = False
    """Whether the head uses the embedding's table."""
    bias: Literal["none", "all", "qkv", "qkv_output", "ffn"] = "none"
    """Which matrix products of the blocks have a bias."""
    head_bias: bool = False
    """Whether the product with the vocabulary has a bias."""
    qk_norm: Literal["none", "head", "all", "weightless"] = "none"
    """Norms of queries and keys. head: weights for the elements of one head; all: for the elements of all heads; weightless: no weights."""
    clamped: bool = False
    """Whether experts clamp the inputs of their activation (gpt-oss)."""
    sinks: bool = False
    """Whether each head has a learned attention sink."""
    norms_per_layer: Literal[1, 2, 4] = 2
    """Norms in each block. 1: attention and feed-forward share one; 2: one before each; 4: one before and one after each."""
    parallel: bool = False
    """Whether attention and feed-forward run in parallel on the same input; required with one norm per block."""
    embedding_norm: bool = False
    """Whether the embedding is followed by a norm."""
    causal: bool = True
    """Whether each token attends only to itself and earlier ones; false: an encoder, whose tokens attend to later ones as well."""
    window: Whole = 0
    """Sliding window: number of tokens that each token can look back, and ahead in an encoder; 0: all."""
    chunked: bool = False
    """Whether the window does not slide: each token attends to the earlier ones of its own chunk of ``window`` tokens (Llama 4)."""
    global_every: Whole = 0
    """With a window: every n-th block attends to all tokens; 0: no block does."""
    dropout: Fraction = 0.0
    """Dropout rate after the embedding and before each residual addition. Dropout of attention's probabilities is part of its kernel."""
    composed_gelu: bool = False
    """Whether the model's code writes GELU as eight operators (``gelu_new`` of Hugging Face transformers), which eager stacks run one by
    one."""
    experts: Whole = 0
    """Number of routed experts in a block; 0: a dense model."""
    experts_per_token: Whole = 0
    """Number of routed experts that each token is sent to; required with ``experts``."""
    expert_groups: Count = 1
    """Number of equal groups of consecutive experts, of which the router first chooses some for each token (DeepSeek-V3's ``n_group``)."""
    groups_per_token: Count | None = None
    """Number of groups in which the experts of one token may be (``topk_group``); None: all."""
    expert_ffn: Count | None = None
    """Width of one expert; None: ``ffn``."""
    shared_experts: Whole = 0
    """Number of shared experts, which process every token in addition to the routed ones."""
    shared_expert_ffn: Count | None = None
    """Total width of all shared experts; None: ``shared_experts * expert_ffn``."""
    first_dense_layers: Whole = 0
    """Number of dense blocks before the first one with experts."""
    moe_every: Count = 1
    """Every n-th block has experts."""
    prediction_layers: Whole = 0
    """Number of additional blocks that predict later tokens (DeepSeek-V3's multi-token prediction); they share embedding and head."""
    mla: Mla | None = None
    """Multi-head latent attention (DeepSeek); none: ordinary attention."""
    pattern: str | None = None
    """Kind of each layer of a hybrid, one letter each, as in ``hybrid_override_pattern`` of Hugging Face and Megatron-LM: M Mamba-2,
    G gated delta net, * attention, P attention and Mamba-2 side by side (Falcon-H1), C short convolution (LFM2), - feed-forward, E experts;
    each layer is one of them, with its norm and residual. None: each layer is attention and feed-forward."""
    block_letters: Count | None = None
    """Letters of ``pattern`` in one layer of the model's code, which recomputation and pipelines do not divide. None: 2 with delta nets
    before feed-forward blocks or experts, else 1, as in Megatron-LM's hybrids."""
    mamba: Mamba | None = None
    """Sizes of Mamba-2 layers; required if ``pattern`` has any."""
    delta_net: DeltaNet | None = None
    """Sizes of gated delta nets; required if ``pattern`` has any."""
    short_conv: Count | None = None
    """Width along the sequence of short convolutions, each between two gates and two products (LFM2); required if ``pattern`` has any."""
    attention_gate: bool = False
    """Whether the result of attention is multiplied by a gate, as wide as the queries (Qwen3-Next)."""
    expert_latent: Count | None = None
    """Width of the vectors that are sent to the routed experts, into and out of which two products project the stream (Nemotron 3 Super);
    None: ``hidden``."""

    def has_bias(self, place: Literal["qkv", "output", "ffn"]) -> bool:
        """Return whether the products at *place* have a bias."""
        return self.bias in {"qkv": ("all", "qkv", "qkv_output"), "output": ("all", "qkv_output"), "ffn": ("all", "ffn")}[place]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for contradicts, sentence in self._contradictions():
            if contradicts:
                raise ValueError(sentence)
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield whether sizes contradict each other in some way, with the error message for it."""
        size, heads = self.hidden, self.heads
        yield (
            self.head_dim is None and self.mla is None and size % heads > 0,
            (f"hidden ({size}) is not a multiple of heads ({heads}); write head_dim, or hidden: {-(-size // heads) * heads}"),
        )
        yield (
            heads % (self.kv_heads or heads) > 0,
            f"heads ({heads}) is not a multiple of kv_heads ({self.kv_heads}); write kv_heads: {heads}",
        )
        yield self.ffn is None and self.gated and self._dense, f"activation {self.activation} needs ffn; add it, such as ffn: {4 * size}"
        yield (
            self.positions == "learned" and self.max_seq is None,
            ("learned positions need max_seq, the number of rows of their table; add it, for example max_seq: 4096"),
        )
        yield self.experts > 0 and not self.experts_per_token, "experts need experts_per_token; add it, such as experts_per_token: 2"
        yield self.experts_per_token > 0 and not self.experts, "experts_per_token needs experts; add experts, or leave it out"
        yield (
            self.experts_per_token > self.experts > 0,
            (f"experts_per_token ({self.experts_per_token}) is above experts ({self.experts}); write {self.experts} or less"),
        )
        yield from self._group_contradictions()
        yield self.experts > 0 and not (self.expert_ffn or self.ffn), "experts need expert_ffn or ffn, the width inside one expert; add one"
        yield self.shared_experts > 0 and not self.experts, "shared_experts needs experts; add experts, or write shared_experts: 0"
        yield from self._hybrid_contradictions()
        yield (
            self.experts > 0 and self.first_dense_layers >= self.layers,
            (
                f"first_dense_layers ({self.first_dense_layers}) leaves none of the {self.layers} layers with experts; write a smaller "
                "number"
            ),
        )
        yield self.global_every > 0 and not self.window, "global_every needs a window; add window, or write global_every: 0"
        yield self.chunked and not self.causal, "chunked windows of an encoder are not modeled; write chunked: false, or causal: true"
        yield self.prediction_layers > 0 and not self.causal, "an encoder predicts no later tokens; write prediction_layers: 0"
        yield self.chunked and not self.window, "chunked needs a window, the tokens of a chunk; add window, or write chunked: false"
        yield (
            self.composed_gelu and self.activation != "gelu",
            f"composed_gelu needs activation gelu, not {self.activation}; write activation: gelu, or composed_gelu: false",
        )
        yield (
            self.attention_gate and self.mla is not None,
            "attention_gate with mla is not modeled; write attention_gate: false, or leave mla out",
        )
        yield self.norms_per_layer == 1 and not self.parallel, "one norm per layer requires parallel blocks; write parallel: true"

    def _group_contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield contradictions of the groups of experts, each with its error message."""
        groups, chosen = self.expert_groups, self.groups_per_token
        yield groups > 1 and not self.experts, "expert_groups needs experts; add experts and experts_per_token, or leave it out"
        yield (
            self.experts % groups > 0,
            f"experts ({self.experts}) is not a multiple of expert_groups ({groups}); write expert_groups: 1, or a divisor of experts",
        )
        if chosen is not None:
            yield chosen > groups, f"groups_per_token ({chosen}) is above expert_groups ({groups}); write {groups} or less"
            yield (
                self.experts_per_token > chosen * self.experts // groups,
                f"experts_per_token ({self.experts_per_token}) is above the {chosen * self.experts // groups} experts of {chosen} groups; "
                f"write a larger groups_per_token",
            )

    def _hybrid_contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield contradictions of ``pattern``, each with its error message."""
        pattern = self.pattern
        if pattern is None:
            yield self.mamba is not None, "mamba needs a pattern that says which layers it is; add it, such as pattern: M-M-M*-"
            yield self.delta_net is not None, "delta_net needs a pattern that says which layers it is; add it, such as pattern: G-G-G-*-"
            yield self.short_conv is not None, "short_conv needs a pattern that says which layers it is; add it, such as pattern: C-C-*-"
            yield self.block_letters is not None, "block_letters needs a pattern; leave it out"
            return
        yield not pattern, "pattern is empty; write a letter for each layer, or leave it out"
        strange = sorted({*pattern} - {*MIXERS})
        yield bool(strange), f"pattern has {' '.join(strange)}; write {LETTERS}"
        yield len(pattern) != self.layers, f"pattern has {len(pattern)} layers, not {self.layers}; write layers: {len(pattern)}"
        yield self.has_mamba and self.mamba is None, "pattern has Mamba-2 layers (M, P); add their sizes, such as mamba: {heads: 64}"
        yield "C" in pattern and self.short_conv is None, "pattern has short convolutions (C); add their width, such as short_conv: 3"
        yield (
            self.layers % self.letters_per_block > 0,
            f"block_letters ({self.letters_per_block}) does not divide the {self.layers} letters of pattern; write block_letters: 1",
        )
        yield (
            "G" in pattern and self.delta_net is None,
            "pattern has gated delta nets (G); add their sizes, such as delta_net: {key_heads: 16, value_heads: 32}",
        )
        yield "E" in pattern and not self.experts, "pattern has experts (E); add experts and experts_per_token"
        yield "E" not in pattern and self.experts > 0, "pattern has no layer with experts (E); add some, or leave experts out"
        yield (
            self.first_dense_layers > 0 or self.moe_every > 1,
            "pattern says which layers have experts (E); leave first_dense_layers and moe_every out",
        )
        yield (
            self.norms_per_layer == 4 and bool({*pattern} & {*"MGPC"}),
            "layers of state spaces and convolutions have one norm, before them; write norms_per_layer: 2",
        )
        yield (
            self.parallel,
            "a layer of a pattern is either attention or feed-forward, so they cannot be parallel; write parallel: false",
        )
        mamba = self.mamba
        if mamba is not None:
            yield (
                mamba.heads % mamba.groups > 0,
                f"mamba.heads ({mamba.heads}) is not a multiple of mamba.groups ({mamba.groups}); write groups: 1",
            )
        delta = self.delta_net
        if delta is not None:
            yield (
                delta.value_heads % delta.key_heads > 0,
                f"delta_net.value_heads ({delta.value_heads}) is not a multiple of key_heads ({delta.key_heads}); write as many key_heads",
            )

    @property
    def has_mamba(self) -> bool:
        """Whether any layer is Mamba-2, alone or beside attention."""
        return bool({*(self.pattern or "")} & {*"MP"})

    @property
    def _dense(self) -> bool:
        """Whether any block has a plain feed-forward block."""
        return any("-" in self.mixers(layer) for layer in range(self.layers))

    @property
    def gated(self) -> bool:
        """Whether the activation has two inputs."""
        return self.activation in GATED

    @property
    def head_size(self) -> int:
        """Elements of one query or key head."""
        if self.mla is not None:
            return self.mla.nope_dim + self.mla.rope_dim
        return self.head_dim or self.hidden // self.heads

    @property
    def value_size(self) -> int:
        """Elements of one value head."""
        return self.mla.value_dim if self.mla is not None else self.head_size

    @property
    def groups(self) -> int:
        """Number of key and value heads."""
        return self.heads if self.mla is not None else self.kv_heads or self.heads

    @property
    def routed_width(self) -> int:
        """Elements of a token that are sent to an expert."""
        return self.expert_latent or self.hidden

    @property
    def inner(self) -> int:
        """Width of a plain feed-forward block."""
        return self.ffn or 4 * self.hidden

    def has_experts(self, layer: int) -> bool:
        """Return whether block number *layer*, counted from 0, has experts."""
        if self.pattern is not None and layer < self.layers:
            return self.pattern[layer] == "E"
        return self.experts > 0 and layer >= self.first_dense_layers and (layer + 1) % self.moe_every == 0

    def mixers(self, layer: int) -> str:
        """Return what block number *layer* consists of, as letters of ``pattern`` in order."""
        if self.pattern is not None and layer < self.layers:
            return self.pattern[layer]
        return "*E" if self.has_experts(layer) else "*-"

    @property
    def letters_per_block(self) -> int:
        """``block_letters``, or what its None stands for; 1 without a pattern.

        Layers with delta nets have two, as other layers of GPT models: Megatron-LM builds them as ``TransformerLayer`` (core/models/gpt/
        experimental_attention_variant_module_specs.py), and transformers as ``Qwen3NextDecoderLayer``. Layers of Megatron-LM's Mamba
        models, whose letters these are, have one (core/ssm/mamba_block.py).
        """
        if self.block_letters is not None:
            return self.block_letters
        pattern = self.pattern or ""
        pairs = (
            "G" in pattern
            and "M" not in pattern
            and len(pattern) % 2 == 0
            and not {*pattern[::2]} & {*"-E"}
            and {*pattern[1::2]} <= {*"-E"}
        )
        return 2 if pairs else 1

    @property
    def block_count(self) -> int:
        """Number of layers as recomputation and pipelines count them."""
        return self.layers // self.letters_per_block

    def share_of(self, mixer: str) -> float:
        """Return the share of blocks that have *mixer*, a letter of ``pattern``, alone or beside another."""
        blocks = (self.mixers(layer) for layer in range(self.layers))
        return sum(mixer in _PARTS.get(letters, letters) for letters in blocks) / self.layers

    def window_of(self, layer: int) -> int:
        """Return the number of tokens that a token can look back in block number *layer*; 0 for all."""
        return 0 if self.global_every and (layer + 1) % self.global_every == 0 else self.window
