"""What workload did the user describe? A model's layer table, a data set, its input pipeline and the training settings."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from sim.spec import extensions
from sim.spec.adapters import Lora, trained_layers
from sim.spec.fields import (
    Bytes,
    Count,
    Counts,
    Duration,
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
from sim.spec.tensor_plan import PlanWord, with_tensor_plan
from sim.spec.transformer import Transformer

TOKEN_INPUT = 16.0
"""Bytes of a token and of its label on the GPU, as int64."""


class Model(Spec):
    """A model: a layer table in forward order, written by ``sim extract``, or the shape of a decoder in ``transformer``.

    With ``transformer`` and ``sequence``, the layers, ``parameters`` and ``input`` are derived.
    """

    name: str
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
    """padded: sequences are padded to ``sequence``, and all of it is computed. unpadded: only tokens are computed. packed: documents fill a
    sequence, and attention stays inside each. Tokens per second always count the full ``sequence``."""
    measured: MeasuredOn | None = None
    """How the times of the layers were measured (``calibration import-trace --workload-out``); None: layer times are computed."""
    layers: tuple[Layer, ...] = Field(min_length=1)
    """Operator calls in forward order; backward runs them in reverse. ``sim extract`` writes them from a torch model."""
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
            decoder = _Decoder.model_validate({name: data[name] for name in _Decoder.model_fields if data.get(name) is not None})
        except ValidationError:  # the validation of the fields reports their problems
            return stand_in | data
        layers, sequence = decoder.layers, decoder.sequence or 0
        derived = {
            "parameters": sum(sum(layer.gradients) + sum(layer.frozen) for layer in layers),
            "input": f"{sequence * TOKEN_INPUT:.0f} B",
        }
        return derived | data | {"layers": layers}

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


class _Decoder(Spec):
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
    return model.unused + sum(sum(layer.gradients) + sum(layer.frozen) for layer in model.layers)


def batch_norms(model: Model) -> list[int]:
    """Return the indices of the BatchNorm layers of *model*: its norms, if it has convolutions and buffers (else they are LayerNorms)."""
    if not model.buffers or not any(layer.op in ("conv", "pointwise_conv", "depthwise_conv") for layer in model.layers):
        return []
    return [index for index, layer in enumerate(model.layers) if layer.op == "norm" and layer.gradients]


class Dataset(Spec):
    """A data set on disk, and the cost of preparing one sample on the reference core (Xeon Gold 5118)."""

    name: str
    samples: Count
    """Number of samples in one epoch."""
    sample: Bytes
    """Mean size of one sample on disk."""
    prepared: Bytes
    """Size of one prepared sample as it is copied to the GPU."""
    prep: Seconds
    """Core time per sample with the PyTorch loader: decode, augment, collate."""
    dali_prep: Seconds | None = None
    """Core time per sample with DALI on the CPU; None: unknown."""
    dali_gpu_prep: Seconds | None = None
    """Core time per sample that remains with DALI on the GPU; None: unknown."""
    dali_gpu_time: Seconds | None = None
    """GPU time per sample of DALI's decoding and augmentation on a V100; None: unknown."""
    lengths: Lengths | None = None
    """Lengths of the sequences relative to the model's full length; None: all have the full length, or their lengths are unknown."""
    files: Literal["per_sample", "packed"] = "per_sample"
    """per_sample: every sample is a separate file, read at random; packed: samples are in large sequential records."""
    sequence: Count | None = None
    """For text in one stream of tokens: tokens per sample to which the other fields refer. They are scaled to the sequence of the model.
    None: samples are not cut from a stream."""
    tokens: Whole = 0
    """Number of tokens in the stream; 0: ``samples`` times ``sequence``."""
    source: Source

    def of_sequence(self, tokens: int) -> Self:
        """Return this data set with its stream of tokens cut into samples of *tokens* tokens."""
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
    """The data loader. Options of torch's DataLoader have their names from torch; counts are per rank."""

    loader: Literal["pytorch", "dali_cpu", "dali_gpu", "synthetic"] = "pytorch"
    """pytorch: torch's DataLoader; dali_cpu, dali_gpu: NVIDIA DALI, decoding on the CPU or the GPU; synthetic: data are already on the
    GPU."""
    own_loader: Annotated[str, BeforeValidator(extensions.checked_name(extensions.LOADERS))] | None = None
    """Name of a user-defined loader, which builds batches in its own order at the costs of ``loader``; None: ``loader`` does."""
    num_workers: Whole = 4
    """Number of loader processes of each rank; 0: the training process loads."""
    prefetch_factor: Count = 2
    """Number of batches that each worker prepares ahead."""
    pin_memory: bool = True
    """Whether batches are copied to page-locked memory, so that their copy to the GPU overlaps with compute."""
    persistent_workers: bool = False
    """Whether workers keep running between epochs."""
    num_threads: Count = 3
    """Number of DALI threads of each rank."""
    worker_start: Seconds = 0.0
    """Time to start the workers at the beginning of an epoch."""
    stream: Stream | None = None
    """Streams samples from an object store during training; None: they are read from the node's disk. Layouts only."""
    compute_cv: Fraction = 0.02
    """Coefficient of variation of a step's compute time that is caused by the concurrent Python loader; ignored with DALI or synthetic
    input."""
    source: Source = Field(
        default={
            "*": "torch and DALI defaults",
            "compute_cv": "estimate (steps and ranks spread by 1 to 3% in traces of petuum/adaptdl and siasosp23/artifacts; the middle)",
        }
    )

    @property
    def jitter(self) -> float:
        """Return the coefficient of variation of compute time that the loader causes."""
        return self.compute_cv if self.loader == "pytorch" else 0.0


class Noise(Spec):
    """Variation of compute time between ranks and steps. With all values 0, the simulation is deterministic."""

    compute_cv: Fraction | None = None
    """Coefficient of variation of one rank's compute time from step to step; None: from the GPU and the loader."""
    persistent_cv: Fraction | None = None
    """Coefficient of variation of mean compute time from rank to rank, constant during a run; None: from the GPU."""
    compute_correlation: Seconds | None = None
    """Layouts: compute time after which a rank's random deviation is replaced by a new one; None: a deviation lasts one step."""
    draw: bool = False
    """Whether each step is drawn at random from the seed, which gives a distribution; false: every step has the expected slowest rank."""

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if self.draw and self.compute_correlation is not None:
            raise ValueError("draw samples one deviation per step; leave compute_correlation out, or write draw: false")
        if self.compute_correlation == 0:
            raise ValueError("compute_correlation must be a time above zero; for example, write 10 ms, or leave it out")
        return self


RecomputedModule = Literal["core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj"]


class Training(Spec):
    """How the model is trained; the batch is per GPU."""

    batch: Count
    """Samples per GPU in one micro-batch."""
    batches: tuple[Count, ...] = ()
    """Samples per GPU for each group of workers, in the order of the hardware's groups, if they differ; empty: ``batch`` for all."""
    precision: Precision = "fp32"
    """fp32, tf32: type of matrix products; amp_fp16, amp_bf16: autocast; fp16, bf16: the whole model; fp8, nvfp4: products in few bits."""
    fp8_recipe: Fp8Recipe | None = None
    """With precision fp8: how tensors are scaled. delayed: one scale per tensor, from earlier steps; tensorwise: one per tensor, from its
    own values; rowwise: one per row; blockwise: by blocks, as in DeepSeek-V3; mxfp8: by MX blocks of 32. None: the stack's default, or
    else Transformer Engine's for this GPU."""
    optimizer: Optimizer = Optimizer()
    """The update rule."""
    stack: Stack
    """The software stack: framework, versions, exchange, kernels, launches."""
    gradient_accumulation_steps: Count = 1
    """Number of micro-batches per step; in layouts also written ``parallel.micro_batches``."""
    parallel: Parallel = Parallel()
    """Layout of the model over the GPUs; the default is plain data parallelism."""
    activation_checkpointing: Annotated[
        Literal["model", "none", "blocks", "selective", "operators"], BeforeValidator(lambda text: "blocks" if text == "full" else text)
    ] = "model"
    """What backward recomputes. model: what the model's code checkpoints; none: nothing; blocks (or ``full``): every numbered block. Only
    in layouts: selective: only attention; operators: all but attention and every second matrix product (torchtitan's selective mode)."""
    recompute_blocks: Whole = 0
    """With ``blocks``: number of blocks per stage that are recomputed (Megatron's recompute_num_layers with method block); 0: all. Layouts
    only."""
    recompute_modules: tuple[RecomputedModule, ...] = ()
    """Parts of every block that backward recomputes individually, by Megatron's names (recompute_modules). Layouts only."""
    recompute_saves: tuple[str, ...] = ()
    """With ``blocks``: layers whose outputs are saved, by the ends of their names, such as ``attention.qkv``; the rest of a block is
    recomputed (torch's ``CheckpointPolicy.MUST_SAVE``, JAX's ``save_only_these_names``). Layouts only."""
    compute_factor: Factor = 1.0
    """Factor on the simulated compute time, for users who have measured it."""
    noise: Noise = Noise()
    """Variation of compute time between steps and ranks."""
    source: Source = "the user's choice"

    @model_validator(mode="before")
    @classmethod
    def _micro_batches(cls, value: object) -> object:
        """Accept ``parallel.micro_batches``, the name in layouts, for gradient_accumulation_steps."""
        parallel = value.get("parallel") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(parallel, dict) or "micro_batches" not in parallel:
            return value
        if "gradient_accumulation_steps" in value:
            raise ValueError("gradient_accumulation_steps and parallel.micro_batches are the same; write one of the two")
        rest = {key: inner for key, inner in parallel.items() if key != "micro_batches"}
        return {**value, "parallel": rest, "gradient_accumulation_steps": parallel["micro_batches"]}

    @property
    def effective_recipe(self) -> Fp8Recipe | None:
        """Return the FP8 recipe of the workload or else of the stack; None if neither specifies one."""
        return self.fp8_recipe or next(iter(self.stack.fp8_recipes), None)

    @property
    def supports_recipe(self) -> bool:
        """Whether the stack supports the FP8 recipe of the workload."""
        return self.fp8_recipe is None or not self.stack.fp8_recipes or self.fp8_recipe in self.stack.fp8_recipes

    @model_validator(mode="after")
    def _saves_of_blocks(self) -> Self:
        if self.recompute_saves and self.activation_checkpointing != "blocks":
            raise ValueError(
                f"recompute_saves is for recomputed blocks, but activation_checkpointing is {self.activation_checkpointing}; write "
                "activation_checkpointing: blocks, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _unlike_batches(self) -> Self:
        if self.batches and self.parallel != Parallel():
            raise ValueError("batches cannot be combined with parallel, because layouts run on identical machines; write one of the two")
        if self.batches and self.stack.asynchronous:
            raise ValueError(
                "batches cannot be used with an asynchronous stack, whose workers do not wait for each other; write only batch"
            )
        return self

    def for_group(self, group: int) -> Self:
        """Return the training settings of the GPUs in worker group *group*, with their batch."""
        return self.model_copy(update={"batch": self.batches[group], "batches": ()}) if self.batches else self


class Workload(Spec):
    """One model on one data set with its training settings."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names by which it can be referred to."""
    description: str = ""
    """One sentence, shown in lists."""
    model: Model
    """The model that is trained."""
    dataset: Dataset
    """The data set that it is trained on."""
    input: Input = Input()
    """How batches are loaded."""
    training: Training
    """Batch, precision, optimizer and software."""
    pretraining: Pretraining | None = None
    """How batch and sequence change over a budget of tokens (``--tokens``); None: they do not."""

    @model_validator(mode="after")
    def _of_tokens(self) -> Self:
        if self.pretraining is not None and self.model.sequence is None:
            raise ValueError("pretraining is counted in tokens, but this model has no sequence of tokens; leave it out")
        return self

    @property
    def sequence(self) -> int | None:
        """Return the tokens of a sample, from the model or else the data set; None for samples that are not text."""
        return self.model.sequence or self.dataset.sequence

    @model_validator(mode="after")
    def _cut(self) -> Self:
        """Cut a stream of tokens into the model's samples."""
        if self.model.sequence is not None:
            object.__setattr__(self, "dataset", self.dataset.of_sequence(self.model.sequence))
        return self

    @model_validator(mode="after")
    def _replays(self) -> Self:
        parallel, measured = self.training.parallel, self.model.measured
        if measured is not None and parallel.context * parallel.expert > 1:
            raise ValueError(
                "layers with measured times cannot be replayed with context or expert ranks; use 1 of each, or the model's own table"
            )
        if measured is not None and parallel.tensor != measured.tensor:
            raise ValueError(
                f"layers measured with {measured.tensor} tensor ranks can only be replayed with {measured.tensor}, not "
                f"{parallel.tensor}; use tensor: {measured.tensor}, or the model's own table"
            )
        return self

    @property
    def layer_stack(self) -> Stack:
        """Return the stack with what this workload changes in it: its FP8 recipe, and ``composed_traffic`` for models with attention."""
        stack = self.training.stack
        if self.training.fp8_recipe is not None:
            stack = stack.model_copy(update={"fp8_recipes": (self.training.fp8_recipe,)})
        if stack.composed_traffic == 1.0 or all(layer.op != "attention" for layer in self.model.layers):
            return stack
        return stack.model_copy(update={"elementwise_traffic": stack.elementwise_traffic * stack.composed_traffic})


class JobSpec(Spec):
    """One of several jobs on one cluster: its *nodes*, and on them *placement* (GPUs per node, as in ``1+2``) or *gpus* by number."""

    workload: Workload
    """The workload that it trains."""
    nodes: Numbers = ()
    """Numbers of its nodes, from 0. Empty: *placement* counts from the first node, and *gpus* are on the first node."""
    placement: Counts | None = None
    """Number of free GPUs that it takes on each node in turn, 0 for none; with *nodes*, a single number applies to each of them."""
    gpus: tuple[Whole, ...] = ()
    """Numbers of its GPUs on each of its nodes."""
    start: Duration = 0.0
    """Time at which it begins."""
    epochs: Factor = 1.0
    """Number of epochs after which it ends, for jobs that come and go and share loader workers (``sim share``)."""


class Jobs(Spec):
    """Several jobs that share a cluster."""

    name: str = "jobs"
    jobs: tuple[JobSpec, ...] = Field(min_length=1)
    """The jobs that share the cluster."""
    coordinated_prep: bool = False
    """Whether jobs with the same data set on the same nodes read and prepare each batch only once for all of them (CoorDL)."""


def for_peak_memory(workload: Workload) -> Workload:
    """Return *workload* for the peak of GPU memory: with the unpadded sequences of a decoder at full length."""
    model = workload.model
    if model.padding != "unpadded" or model.lengths is None:
        return workload
    layers = at_full_length(model.layers, model.lengths.mean)
    return workload.model_copy(update={"model": model.model_copy(update={"layers": layers})})
