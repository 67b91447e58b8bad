"""How is a model trained? Batch, precision, optimizer, software, layout, recomputation, and how compute time varies."""

from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, model_validator

from sim.spec.fields import Count, Factor, Fp8Recipe, Fraction, Precision, Seconds, Source, Spec, Whole
from sim.spec.optimizer import Optimizer
from sim.spec.parallel import MeshOptions, Parallel
from sim.spec.stack import AsyncParameterServer, Stack


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


Checkpointing = Literal["model", "none", "blocks", "selective", "operators"]
RecomputedModule = Literal["core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj"]


MOST_MICRO_BATCHES: Final = 100_000
"""Most micro-batches of a step: more are a mistake, such as a batch in tokens (estimate), and each is simulated."""


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
    activation_checkpointing: Annotated[Checkpointing, BeforeValidator(lambda text: "blocks" if text == "full" else text)] = "model"
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
    def has_layout(self) -> bool:
        """Whether ranks run a layout rather than DDP: the model is divided or sharded, or the stack is a framework for layouts.

        Such a framework keeps its own data types for weights, gradients and states in data parallelism as well (``stack.mesh``).
        """
        return not self.parallel.is_trivial or self.stack.mesh is not None

    @property
    def mesh(self) -> MeshOptions | None:
        """Return how the stack runs layouts in this precision: in 32 bits, weights and gradients have no 16-bit type and no master copy."""
        mesh = self.stack.mesh
        if mesh is None or self.precision not in ("fp32", "tf32") or mesh.weights == mesh.gradients == mesh.reduction == "fp32":
            return mesh
        return mesh.model_copy(update={"weights": "fp32", "master": False, "gradients": "fp32", "reduction": "fp32"})

    @property
    def effective_recipe(self) -> Fp8Recipe | None:
        """Return the FP8 recipe of the workload or else of the stack; None if neither specifies one."""
        return self.fp8_recipe or next(iter(self.stack.kernels.fp8_recipes), None)

    @property
    def supports_recipe(self) -> bool:
        """Whether the stack supports the FP8 recipe of the workload."""
        return self.fp8_recipe is None or not self.stack.kernels.fp8_recipes or self.fp8_recipe in self.stack.kernels.fp8_recipes

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
        if self.batches and isinstance(self.stack.exchange, AsyncParameterServer):
            raise ValueError(
                "batches cannot be used with an asynchronous stack, whose workers do not wait for each other; write only batch"
            )
        return self

    def for_group(self, group: int) -> Self:
        """Return the training settings of the GPUs in worker group *group*, with their batch."""
        return self.model_copy(update={"batch": self.batches[group], "batches": ()}) if self.batches else self
