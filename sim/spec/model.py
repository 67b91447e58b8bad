"""What does a model compute for one sample? A table of its layers, or the shape of a decoder from which the table is derived."""

from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from sim.spec.adapters import Lora, trained_layers
from sim.spec.fields import Bytes, Count, Label, Source, Spec, Whole
from sim.spec.layer import Layer
from sim.spec.lengths import Lengths, Padding, with_lengths
from sim.spec.measured import MeasuredOn
from sim.spec.tensor_plan import PlanWord, with_tensor_plan
from sim.spec.transformer import Transformer

TOKEN_INPUT = 16.0
"""Bytes of a token and of its label on the GPU, as int64."""


class Model(Spec):
    """A model: a layer table in forward order, written by ``python -m sim extract``, or the shape of a decoder in ``transformer``.

    With ``transformer`` and ``sequence``, the layers, ``parameters`` and ``input`` are derived.
    """

    name: Label
    command: str = ""
    """The command that wrote the table."""
    parameters: Count
    """Number of parameters: elements of the layers' gradient and frozen tensors, plus ``unused``."""
    unused: Whole = 0
    """Number of parameters that are not frozen but that no gradient reaches."""
    input: Bytes
    """Size of one sample's input tensors on the GPU."""
    buffers: Bytes = 0.0
    """Size of the non-trainable state, such as BatchNorm statistics."""
    autocast_saved: Bytes = 0.0
    """Bytes per sample that all layers together save for backward if autocast runs products in 16 bits; 0: unknown."""
    transformer: Transformer | None = None
    """Shape of a decoder, from which ``layers`` is derived; none: ``layers`` is given."""
    sequence: Count | None = None
    """Tokens of a sample; required with ``transformer``."""
    lora: Lora | None = None
    """Low-rank adapters that are trained instead of the decoder's weights; none: the weights are trained."""
    frozen: tuple[str, ...] = ()
    """Layers of the decoder that are not trained: names such as ``tokens`` or ``layers.3``, or ranges such as ``layers.0..15``."""
    lengths: Lengths | None = None
    """Lengths of the decoder's sequences (packed: of the documents in them), relative to ``sequence``."""
    padding: Padding = "padded"
    """padded: sequences are padded to ``sequence``, and all of it is computed. unpadded: only tokens are computed. packed: documents fill
    a sequence, and attention stays inside each. Tokens per second count computed tokens; without padding, these are only the sample's
    own."""
    measured: MeasuredOn | None = None
    """How the times of the layers were measured (``calibration import-trace --workload-out``); None: layer times are computed."""
    layers: tuple[Layer, ...] = Field(min_length=1)
    """Operator calls in forward order; backward runs them in reverse. ``python -m sim extract`` writes them from a torch model."""
    lists: tuple[str, ...] = ()
    """Modules that contain others and are never called themselves (``nn.ModuleList``, ``nn.ModuleDict``); FSDP cannot wrap them."""
    called_lists: tuple[str, ...] = ()
    """Modules of this kind that have a forward: torch's ``size_based_auto_wrap_policy`` looks into them but does not wrap them."""
    leaves: tuple[str, ...] = ()
    """Modules that ``size_based_auto_wrap_policy`` neither wraps nor looks into (``nn.MultiheadAttention``)."""
    tensor_plan: dict[str, PlanWord] = Field(default={})
    """How tensor ranks split the layers of a traced table, by patterns of module paths, of which the first match applies (``*`` matches one
    name, ``**`` any number of names): ``{"block.*.feed": colwise, "block.*.feed_output": rowwise}``."""
    source: Source

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, data: Any) -> Any:
        """Add the layer table if *data* describes a decoder."""
        if not isinstance(data, dict) or data.get("transformer") is None:
            return data
        if "layers" in data:
            raise ValueError("layers and transformer both describe the layers; write one of the two")
        stand_in = {"parameters": 1, "input": "0 B", "layers": (Layer(name="tokens", op="embedding"),)}
        try:
            decoder = _DecoderFields.model_validate(
                {name: data[name] for name in _DecoderFields.model_fields if data.get(name) is not None}
            )
        except ValidationError:  # the validation of the fields reports their problems
            return stand_in | data
        layers, sequence = decoder.layers, decoder.sequence or 0
        derived = {
            "parameters": sum(layer.parameters for layer in layers),
            "input": f"{sequence * TOKEN_INPUT:.0f} B",
        }
        return derived | data | {"layers": layers}

    @property
    def computed_share(self) -> float | None:
        """Return the mean share of ``sequence`` that samples without padding compute; None if all of it is computed."""
        return self.lengths.mean if self.padding == "unpadded" and self.lengths is not None else None

    @property
    def decodes(self) -> bool:
        """Return whether this is a decoder (or described by its sizes), also as a table of layers, such as a replay."""
        return self.transformer is not None or any(layer.attention is not None and layer.attention.causal for layer in self.layers)

    @property
    def trained_parameters(self) -> int:
        """Return the number of parameters that are not frozen."""
        return self.parameters - sum(sum(layer.frozen) for layer in self.layers)

    @model_validator(mode="after")
    def _described(self) -> Self:
        if self.transformer is None and (self.lora or self.frozen or self.sequence or self.lengths):
            field_name = next(name for name in ("sequence", "lora", "frozen", "lengths") if getattr(self, name))
            raise ValueError(
                f"{field_name} needs a model described by its sizes (a block transformer); {self.name} is a traced layer table: leave "
                f"{field_name} out, or trace the model again"
            )
        return self

    @model_validator(mode="after")
    def _planned(self) -> Self:
        """Set the tensor shares of a traced table's layers by the plan."""
        if self.tensor_plan and self.transformer is not None:
            raise ValueError(
                f"tensor_plan is for layer tables; {self.name} is described by its sizes, which determine the plan: leave it out"
            )
        if self.tensor_plan:
            object.__setattr__(self, "layers", with_tensor_plan(self.layers, self.tensor_plan))
        return self

    @model_validator(mode="after")
    def _timed(self) -> Self:
        lacking = next((layer.name for layer in self.layers if (layer.measured is None) != (self.measured is None)), None)
        if lacking is not None and self.measured is not None:
            raise ValueError(f"layer {lacking} has no measured times, but all layers of a measured model need them; import its trace again")
        if lacking is not None:
            raise ValueError(
                f"layer {lacking} has measured times, but the model does not state where they were measured; write measured: {{gpu: ..., "
                "batch: ...}"
            )
        return self

    @model_validator(mode="after")
    def _counted(self) -> Self:
        total = sum(sum(layer.gradients) for layer in self.layers)
        if total > self.parameters:
            raise ValueError(
                f"the layers' gradients hold {total} elements, more than the model's {self.parameters} parameters; "
                f"write parameters: {count_parameters(self)}"
            )
        return self


class _DecoderFields(Spec):
    """The fields from which a decoder's layer table is derived."""

    transformer: Transformer
    sequence: Count | None = None
    lora: Lora | None = None
    frozen: tuple[str, ...] = ()
    lengths: Lengths | None = None
    padding: Padding = "padded"

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table. Raise ValueError if ``sequence``, or ``lengths`` where the padding needs them, is missing."""
        if self.sequence is None:
            most = self.transformer.max_seq
            raise ValueError(
                f"a transformer needs sequence, the number of tokens per sample; add it, such as sequence: {min(most or 2048, 4096)}"
            )
        layers = trained_layers(self.transformer, self.sequence, self.lora, self.frozen)
        if self.padding == "padded":
            return layers
        if self.lengths is None:
            raise ValueError(f"padding {self.padding} needs lengths; write lengths: {{mean: ..., square: ..., source: ...}}")
        return with_lengths(layers, self.padding, self.lengths.mean, self.lengths.square)


def count_parameters(model: Model) -> int:
    """Return the number of parameters in the layers of *model* and its ``unused``."""
    return model.unused + sum(layer.parameters for layer in model.layers)


def batch_norms(model: Model) -> list[int]:
    """Return the indices of the BatchNorm layers of *model*: its norms, if it has convolutions and buffers (else they are LayerNorms)."""
    if not model.buffers or not any(layer.op in ("conv", "pointwise_conv", "depthwise_conv") for layer in model.layers):
        return []
    return [index for index, layer in enumerate(model.layers) if layer.op == "norm" and layer.gradients]
