"""What workload did the user describe? A model's layer table, a data set, its input pipeline and the training set-up."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from sim.spec import extensions
from sim.spec.adapters import Lora, trained_layers
from sim.spec.fields import (
    Bytes,
    Count,
    Counts,
    Factor,
    Fp8Recipe,
    Fraction,
    Numbers,
    Precision,
    Seconds,
    Source,
    Spec,
    Whole,
)
from sim.spec.layer import WIDTHS as WIDTHS
from sim.spec.layer import Attention as Attention
from sim.spec.layer import Layer as Layer
from sim.spec.layer import TensorShare as TensorShare
from sim.spec.lengths import Lengths as Lengths
from sim.spec.lengths import Padding, at_full_length, with_lengths
from sim.spec.measured import MeasuredOn
from sim.spec.optimizer import Optimizer
from sim.spec.parallel import Parallel
from sim.spec.pretraining import Pretraining
from sim.spec.stack import Stack
from sim.spec.stream import Stream
from sim.spec.tensor_plan import PlanWord, planned
from sim.spec.transformer import Transformer

TOKEN_INPUT = 16.0
"""Bytes of a token and of its label on the GPU, as int64."""


class Model(Spec):
    """A layer table in forward order; backward runs it in reverse. Written by ``sim extract``, or made from a ``transformer``.

    With ``transformer`` and ``sequence`` the table, its parameters and its input follow.
    """

    name: str
    command: str = ""
    """The command that wrote the table."""
    parameters: Count
    """All of them: elements of the layers' gradient and frozen tensors, and the unused."""
    unused: Whole = 0
    """Parameters that are not frozen, but that no gradient reaches."""
    input: Bytes
    """Bytes of one sample's input tensors on the GPU."""
    buffers: Bytes = 0.0
    """Non-trainable state, such as BatchNorm statistics."""
    autocast_saved: Bytes = 0.0
    """Bytes a sample that backward keeps, all layers together, where autocast runs products in 16 bits; 0 where that is not known."""
    transformer: Transformer | None = None
    """Shape of a decoder, which the layers follow from."""
    sequence: Count | None = None
    """Tokens of a sample, with ``transformer``."""
    lora: Lora | None = None
    """Low-rank adapters that train in place of the decoder's weights."""
    frozen: tuple[str, ...] = ()
    """Layers of the decoder that do not train: names such as ``tokens`` or ``layers.3``, or ranges such as ``layers.0..15``."""
    lengths: Lengths | None = None
    """How long the decoder's sequences (packed: the documents in them) are, as shares of ``sequence``."""
    padding: Padding = "padded"
    """padded: filled up to ``sequence``, all of it is computed. unpadded: tokens only. packed: documents fill a sequence, attention stays
    inside each. Tokens per second count places, filled or not."""
    measured: MeasuredOn | None = None
    """Where the times that layers carry were measured (``calibration import-trace --workload-out``); None: layer times are computed."""
    layers: tuple[Layer, ...] = Field(min_length=1)
    """Operator calls in the order of forward; ``sim extract`` writes them from a torch model."""
    lists: tuple[str, ...] = ()
    """Modules that hold others and are not called themselves (``nn.ModuleList``, ``nn.ModuleDict``), which FSDP cannot wrap."""
    called_lists: tuple[str, ...] = ()
    """The same with a forward of their own: torch's ``size_based_auto_wrap_policy`` looks into them, but does not wrap them."""
    leaves: tuple[str, ...] = ()
    """Modules that this policy neither wraps nor looks into (``nn.MultiheadAttention``)."""
    tensor_plan: dict[str, PlanWord] = Field(default={})
    """How tensor ranks divide the layers of a traced table, by patterns of module paths in the order of precedence (``*`` one name, ``**``
    any number): ``{"block.*.feed": colwise, "block.*.feed_output": rowwise}``."""
    source: Source

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, said: Any) -> Any:
        """Add the table where *said* describes a decoder."""
        if not isinstance(said, dict) or said.get("transformer") is None:
            return said
        if "layers" in said:
            raise ValueError("layers and transformer say the same; write one of the two")
        stand_in = {"parameters": 1, "input": "0 B", "layers": (Layer(name="tokens", op="embedding"),)}
        try:
            decoder = _Decoder.model_validate({name: said[name] for name in _Decoder.model_fields if said.get(name) is not None})
        except ValidationError:  # the fields' own validation says what is wrong with them
            return stand_in | said
        layers, sequence = decoder.layers, decoder.sequence or 0
        made = {"parameters": sum(sum(layer.gradients) + sum(layer.frozen) for layer in layers), "input": f"{sequence * TOKEN_INPUT:.0f} B"}
        return made | said | {"layers": layers}

    @model_validator(mode="after")
    def _described(self) -> Model:
        if self.transformer is None and (self.lora or self.frozen or self.sequence or self.lengths):
            given = next(name for name in ("sequence", "lora", "frozen", "lengths") if getattr(self, name))
            raise ValueError(
                f"{given} needs a model described by its sizes (a block transformer); {self.name} is a table of layers as they were "
                f"traced: leave {given} out, or trace it anew"
            )
        return self

    @model_validator(mode="after")
    def _planned(self) -> Model:
        """Give the layers of a traced table the shares of the plan."""
        if self.tensor_plan and self.transformer is not None:
            raise ValueError(f"tensor_plan is for tables of layers; {self.name} is described by its sizes and has a plan: leave it out")
        if self.tensor_plan:
            object.__setattr__(self, "layers", planned(self.layers, self.tensor_plan))
        return self

    @model_validator(mode="after")
    def _timed(self) -> Model:
        lacking = next((layer.name for layer in self.layers if (layer.measured is None) != (self.measured is None)), None)
        if lacking is not None and self.measured is not None:
            raise ValueError(f"layer {lacking} has no measured times, which all layers of a measured model need; import its trace again")
        if lacking is not None:
            raise ValueError(
                f"layer {lacking} has measured times, but the model does not say where; write measured: {{gpu: ..., batch: ...}}"
            )
        return self

    @model_validator(mode="after")
    def _counted(self) -> Model:
        total = sum(sum(layer.gradients) for layer in self.layers)
        if total > self.parameters:
            raise ValueError(
                f"the layers' gradients hold {total} elements, more than the model's {self.parameters} parameters; "
                f"write parameters: {known_parameters(self)}"
            )
        return self


class _Decoder(Spec):
    """What a decoder's table follows from."""

    transformer: Transformer
    sequence: Count | None = None
    lora: Lora | None = None
    frozen: tuple[str, ...] = ()
    lengths: Lengths | None = None
    padding: Padding = "padded"

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The table; raise ValueError without a sequence, or without the lengths that it takes."""
        if self.sequence is None:
            most = self.transformer.max_seq
            raise ValueError(f"a transformer needs sequence, the tokens of a sample; write it, such as sequence: {min(most or 2048, 4096)}")
        layers = trained_layers(self.transformer, self.sequence, self.lora, self.frozen)
        if self.padding == "padded":
            return layers
        if self.lengths is None:
            raise ValueError(f"padding {self.padding} needs lengths; write lengths: {{mean: ..., square: ..., source: ...}}")
        return with_lengths(layers, self.padding, self.lengths.mean, self.lengths.square)


def fullest(workload: Workload) -> Workload:
    """Return *workload* as a GPU's memory has to hold it: unpadded sequences of a decoder at their longest."""
    model = workload.model
    if model.padding != "unpadded" or model.lengths is None:
        return workload
    layers = at_full_length(model.layers, model.lengths.mean)
    return workload.model_copy(update={"model": model.model_copy(update={"layers": layers})})


def known_parameters(model: Model) -> int:
    """Return how many parameters the layers of *model* and its ``unused`` tell of."""
    return model.unused + sum(sum(layer.gradients) + sum(layer.frozen) for layer in model.layers)


def batch_norms(model: Model) -> list[int]:
    """Return the places of the BatchNorm layers in the table of *model*: convolutions and buffers tell them from LayerNorm."""
    if not model.buffers or not any(layer.op in ("conv", "pointwise_conv", "depthwise_conv") for layer in model.layers):
        return []
    return [index for index, layer in enumerate(model.layers) if layer.op == "norm" and layer.gradients]


class Dataset(Spec):
    """A data set as it lies on disk, and what one sample costs to prepare on the reference core (Xeon Gold 5118)."""

    name: str
    samples: Count
    """In one epoch."""
    sample: Bytes
    """Mean bytes of one sample on disk."""
    prepared: Bytes
    """Bytes of one prepared sample as it crosses to the GPU."""
    prep: Seconds
    """Core time per sample with the PyTorch loader: decode, augment, collate."""
    dali_prep: Seconds | None = None
    """Core time per sample with DALI on the CPU."""
    dali_gpu_prep: Seconds | None = None
    """Core time per sample that remains with DALI on the GPU."""
    dali_gpu_time: Seconds | None = None
    """GPU time per sample that DALI's decode and augmentation take on a V100."""
    lengths: Lengths | None = None
    """Of sequences that are shorter than the model's; None where all are of one length, or nobody knows."""
    files: Literal["per_sample", "packed"] = "per_sample"
    """per_sample: every sample is a file of its own, read at random; packed: large sequential records."""
    sequence: Count | None = None
    """Tokens of one sample, of text in one stream of tokens; its counts, sizes and times follow the sequence of the model."""
    tokens: Whole = 0
    """Tokens of the stream; 0: as many as ``samples`` times ``sequence``."""
    source: Source

    def of_sequence(self, tokens: int) -> Dataset:
        """Return this stream of tokens cut into samples of *tokens* tokens."""
        if self.sequence in (None, tokens):
            return self
        longer, total = tokens / self.sequence, self.tokens or self.samples * self.sequence
        return self.model_copy(
            update={
                "samples": max(1, total // tokens),
                "tokens": total,
                "sample": self.sample * longer,
                "prepared": self.prepared * longer,
                "prep": self.prep * longer,
                "sequence": tokens,
            }
        )


class Input(Spec):
    """The loader; torch's own names for torch's options. Counts are per rank."""

    loader: Literal["pytorch", "dali_cpu", "dali_gpu", "synthetic"] = "pytorch"
    """dali_cpu, dali_gpu: NVIDIA DALI, decoding on the processor or the GPU. synthetic: data are ready on the GPU."""
    own_loader: Annotated[str, BeforeValidator(extensions.checked_name(extensions.LOADERS))] | None = None
    """The name of a loader of your own, which builds batches at the costs of ``loader`` in an order of its own."""
    num_workers: Whole = 4
    """Loader processes of each rank; 0: the training process loads."""
    prefetch_factor: Count = 2
    """Batches that each worker has ready or in the making."""
    pin_memory: bool = True
    """Whether batches are copied to page-locked memory, from which they go to the GPU beside compute."""
    persistent_workers: bool = False
    """Whether workers live on between epochs."""
    num_threads: Count = 3
    """DALI's threads of one rank."""
    worker_start: Seconds = 0.0
    """Time to start the workers at the beginning of an epoch."""
    stream: Stream | None = None
    """Samples come from an object store while training runs; None: from the node's disk. Layouts only."""
    compute_cv: Fraction = 0.02
    """Coefficient of variation that a step's compute time owes to Python's loader beside it; none with DALI or synthetic input."""
    source: Source = Field(
        default={
            "*": "torch and DALI defaults",
            "compute_cv": "estimate (steps and ranks spread by 1 to 3% in traces of petuum/adaptdl and siasosp23/artifacts; the middle)",
        }
    )

    @property
    def jitter(self) -> float:
        """Return what the loader adds to the variation of compute time."""
        return self.compute_cv if self.loader == "pytorch" else 0.0


class Noise(Spec):
    """How ranks and steps differ; zero is deterministic."""

    compute_cv: Fraction | None = None
    """Coefficient of variation of one rank's compute time from step to step; None takes the GPU's and the loader's."""
    persistent_cv: Fraction | None = None
    """Coefficient of variation of the ranks' mean compute times, which stay as they are; None takes the GPU's."""
    compute_correlation: Seconds | None = None
    """Layouts: seconds of compute after which what a rank deviates by from step to step is another; None: it lasts a step."""
    draw: bool = False
    """Draw each step from the seed's random numbers, for its distribution; else every step has the expected slowest rank."""

    @model_validator(mode="after")
    def _lasts(self) -> Noise:
        if self.draw and self.compute_correlation is not None:
            raise ValueError("draw takes deviations that last a step; leave compute_correlation out, or write draw: false")
        if self.compute_correlation == 0:
            raise ValueError("compute_correlation is a time above zero; write for example 10 ms, or leave it out")
        return self


RecomputedModule = Literal["core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj"]


class Training(Spec):
    """How the model is trained; the batch is per GPU."""

    batch: Count
    """Samples of each GPU in one micro-batch."""
    batches: tuple[Count, ...] = ()
    """Samples per GPU of each group of workers, in the hardware's order, where they differ; empty: ``batch`` on all."""
    precision: Precision = "fp32"
    """fp32, tf32: of products; amp_*: autocast; fp16, bf16: the whole model."""
    fp8_recipe: Fp8Recipe | None = None
    """With precision fp8: how tensors are scaled, by a scale each from earlier steps (delayed) or their own (tensorwise), by one a row, by
    blocks as DeepSeek-V3 (blockwise), or by MX blocks of 32 (mxfp8); None: as the stack does, or Transformer Engine on this GPU."""
    optimizer: Optimizer = Optimizer()
    """Which one, and its states."""
    stack: Stack
    """Framework and its versions: exchange, kernels, launches."""
    gradient_accumulation_steps: Count = 1
    """Micro-batches of one step."""
    parallel: Parallel = Parallel()
    """Layout of the model over the GPUs; the default is plain data parallelism."""
    activation_checkpointing: Annotated[
        Literal["model", "none", "blocks", "selective", "operators"], BeforeValidator(lambda text: "blocks" if text == "full" else text)
    ] = "model"
    """What backward recomputes: what the model's code says, nothing, or every numbered block (also written ``full``); in layouts also
    attention alone (selective), or all but attention and every second matrix product (operators, torchtitan's selective mode)."""
    recompute_blocks: Whole = 0
    """Of ``blocks``, how many of each stage are recomputed (Megatron's recompute_num_layers with method block); 0: all. Layouts only."""
    recompute_modules: tuple[RecomputedModule, ...] = ()
    """Parts of every block that backward computes again by themselves, under Megatron's names (recompute_modules). Layouts only."""
    recompute_saves: tuple[str, ...] = ()
    """Of ``blocks``, layers whose outputs are saved all the same, by the end of their names, such as ``attention.qkv``; all else of a block
    is computed again (torch's ``CheckpointPolicy.MUST_SAVE``, JAX's ``save_only_these_names``). Layouts only."""
    compute_factor: Factor = 1.0
    """Measured compute time over the model's, where the user knows it."""
    noise: Noise = Noise()
    """How steps and ranks vary."""
    source: Source = "the user's choice"

    @model_validator(mode="before")
    @classmethod
    def _micro_batches(cls, value: object) -> object:
        """Take ``parallel.micro_batches`` for gradient_accumulation_steps, whose name in layouts it is."""
        parallel = value.get("parallel") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(parallel, dict) or "micro_batches" not in parallel:
            return value
        if "gradient_accumulation_steps" in value:
            raise ValueError("gradient_accumulation_steps and parallel.micro_batches are the same; write one of the two")
        rest = {key: inner for key, inner in parallel.items() if key != "micro_batches"}
        return {**value, "parallel": rest, "gradient_accumulation_steps": parallel["micro_batches"]}

    @property
    def asked_recipe(self) -> Fp8Recipe | None:
        """Return how 8 bits are scaled, as workload or stack say; None: neither does."""
        return self.fp8_recipe or next(iter(self.stack.fp8_recipes), None)

    @property
    def has_recipe(self) -> bool:
        """Whether the stack has the recipe of 8 bits that the workload names."""
        return self.fp8_recipe is None or not self.stack.fp8_recipes or self.fp8_recipe in self.stack.fp8_recipes

    @model_validator(mode="after")
    def _saves_of_blocks(self) -> Training:
        if self.recompute_saves and self.activation_checkpointing != "blocks":
            raise ValueError(
                f"recompute_saves is for blocks that are computed again, and activation_checkpointing is {self.activation_checkpointing}; "
                "write activation_checkpointing: blocks, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _unlike_batches(self) -> Training:
        if self.batches and self.parallel != Parallel():
            raise ValueError("batches beside parallel: layouts run on equal machines; write one of the two")
        if self.batches and self.stack.asynchronous:
            raise ValueError("batches on an asynchronous stack: its workers do not wait for each other; write batch alone")
        return self

    def at(self, group: int) -> Training:
        """Return the training of the GPUs of worker group *group*, with their own batch."""
        return self.model_copy(update={"batch": self.batches[group], "batches": ()}) if self.batches else self


class Workload(Spec):
    """One model on one data set with one training set-up."""

    name: str
    aliases: tuple[str, ...] = ()
    """Further names by which it is found."""
    description: str = ""
    """One sentence, shown in lists."""
    model: Model
    """What is trained."""
    dataset: Dataset
    """What it is trained on."""
    input: Input = Input()
    """How batches are loaded."""
    training: Training
    """Batch, precision, optimizer and software."""
    pretraining: Pretraining | None = None
    """How batch and sequence change over a budget of tokens (``--tokens``); None: not at all."""

    @model_validator(mode="after")
    def _of_tokens(self) -> Workload:
        if self.pretraining is not None and self.model.sequence is None:
            raise ValueError("pretraining is counted in tokens, and this model has no sequence of them; leave it out")
        return self

    @property
    def sequence(self) -> int | None:
        """Return the tokens of a sample, where model or data set say; None for images and rows."""
        return self.model.sequence or self.dataset.sequence

    @model_validator(mode="after")
    def _cut(self) -> Workload:
        """Cut a stream of tokens into the model's samples."""
        if self.model.sequence is not None:
            object.__setattr__(self, "dataset", self.dataset.of_sequence(self.model.sequence))
        return self

    @model_validator(mode="after")
    def _replays(self) -> Workload:
        parallel, on = self.training.parallel, self.model.measured
        if on is not None and parallel.context * parallel.expert > 1:
            raise ValueError(
                "layers with measured times are not replayed with context or expert ranks; use 1 of each, or the model's own table"
            )
        if on is not None and parallel.tensor != on.tensor:
            raise ValueError(
                f"layers that {on.tensor} tensor ranks divided where they were measured are replayed on as many, not {parallel.tensor}; "
                f"use tensor: {on.tensor}, or the model's own table"
            )
        return self

    @property
    def layer_stack(self) -> Stack:
        """Return the stack as it treats this model's layers: operators of models with attention may be composed of many, 8 bits scaled."""
        stack = self.training.stack
        if self.training.fp8_recipe is not None:
            stack = stack.model_copy(update={"fp8_recipes": (self.training.fp8_recipe,)})
        if stack.composed_traffic == 1.0 or all(layer.op != "attention" for layer in self.model.layers):
            return stack
        return stack.model_copy(update={"elementwise_traffic": stack.elementwise_traffic * stack.composed_traffic})


class JobSpec(Spec):
    """One of several jobs on one cluster: which *nodes*, and there *placement* (GPUs per node, as in ``1+2``) or *gpus* by number."""

    workload: Workload
    """What it trains."""
    nodes: Numbers = ()
    """Numbers of its nodes, from 0 on; without, *placement* counts from the first node, and *gpus* are those of the first."""
    placement: Counts | None = None
    """GPUs of each node in turn, 0 for none, those that are free; with *nodes* one number stands for each of them."""
    gpus: tuple[Whole, ...] = ()
    """GPUs on each of its nodes."""
    start: Seconds = 0.0
    """When it begins."""
    epochs: Factor = 1.0
    """Epochs after which it is over, where jobs that come and go share loader workers (``sim share``)."""


class Jobs(Spec):
    """Several jobs that share a cluster."""

    name: str = "jobs"
    jobs: tuple[JobSpec, ...] = Field(min_length=1)
    """The jobs that share the cluster."""
    coordinated_prep: bool = False
    """Whether jobs with one data set on the same nodes read and prepare each batch once for all of them (CoorDL)."""
