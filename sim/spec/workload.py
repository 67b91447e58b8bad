"""What workload did the user describe? A model on a data set with its training settings, or several such jobs on one cluster."""

from typing import Any, Self

from pydantic import Field, model_validator

from sim.spec.fields import Counts, Duration, Factor, Label, Numbers, Spec, Whole
from sim.spec.input import Dataset, Input
from sim.spec.model import Model
from sim.spec.pretraining import Pretraining
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.training import Training


class Workload(Spec):
    """One model on one data set with its training settings."""

    name: Label
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
        if self.pretraining is not None and self.sequence is None:
            raise ValueError("pretraining is counted in tokens, but this model has no sequence of tokens; leave it out")
        return self

    @property
    def sequence(self) -> int | None:
        """Return the tokens of a sample, from the model or else the data set; None for samples that are not text."""
        return self.model.sequence or self.dataset.sequence

    @property
    def padded_sequence(self) -> int | None:
        """Return the tokens that are computed of every sample; None if samples differ (padding is left out) or are not text."""
        unpadded = self.training.stack.unpadded or self.model.padding == "unpadded"
        return None if unpadded else self.sequence

    @property
    def tokens_per_sample(self) -> float | None:
        """Return the mean number of tokens that a sample trains: those of ``sequence``, or without padding only its own."""
        lengths = self.dataset.lengths
        share = (lengths.mean if lengths else None) if self.training.stack.unpadded else self.model.computed_share
        return self.sequence if self.sequence is None or share is None else self.sequence * share

    @model_validator(mode="after")
    def _cut(self) -> Self:
        """Cut a stream of tokens into the model's samples."""
        if self.model.sequence is not None:
            tokens = max(1, round(self.tokens_per_sample or 0))
            object.__setattr__(self, "dataset", self.dataset.of_sequence(tokens))
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
        """Return the stack with what this workload changes in it: its FP8 recipe, and ``composed_traffic`` for models with attention.

        A ``compute_factor`` that was fitted to steps of decoders is only for decoders. Other layer tables were fitted to whole steps
        themselves, so that their compute is the same under every stack that runs the same kernels.
        """
        stack = self.training.stack
        if stack.kernels.factor_by_kernels and not self.model.decodes:
            stack = with_fields(stack, compute_factor=1.0, factor_by_kernels=False)
        if self.training.fp8_recipe is not None:
            stack = with_fields(stack, fp8_recipes=(self.training.fp8_recipe,))
        if stack.kernels.composed_traffic == 1.0 or all(layer.op != "attention" for layer in self.model.layers):
            return stack
        return with_fields(stack, elementwise_traffic=stack.kernels.elementwise_traffic * stack.kernels.composed_traffic)

    @property
    def loader_jitter(self) -> float:
        """Return the coefficient of variation of compute time that the loader causes: workers that slice a stream of tokens are idle."""
        return 0.0 if self.model.decodes else self.input.jitter

    def with_training(self, **fields: Any) -> Self:
        """Return this workload with other values of *fields* of its training, which are not validated.

        Raise ValueError for a field that it does not have.
        """
        return self.model_copy(update={"training": with_fields(self.training, **fields)})


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
    """Number of epochs after which it ends, for jobs that come and go and share loader workers (``python -m sim share``)."""


class Jobs(Spec):
    """Several jobs that share a cluster."""

    name: Label = "jobs"
    jobs: tuple[JobSpec, ...] = Field(min_length=1)
    """The jobs that share the cluster."""
    coordinated_prep: bool = False
    """Whether jobs with the same data set on the same nodes read and prepare each batch only once for all of them (CoorDL)."""
