"""What does a job read, and how is it loaded? The data set on disk, and the settings of the data loader."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from sim.spec import extensions
from sim.spec.fields import Bytes, Count, Fraction, Label, Seconds, Source, Spec, Whole
from sim.spec.lengths import Lengths
from sim.spec.stream import Stream


class Dataset(Spec):
    """A data set on disk, and the cost of preparing one sample on the reference core (Xeon Gold 5118)."""

    name: Label
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
    """Coefficient of variation of a step's compute time that is caused by the concurrent Python loader; ignored with DALI, synthetic input,
    and decoders, whose tokens are only sliced."""
    source: Source = Field(
        default={
            "*": "torch and DALI defaults",
            "compute_cv": "estimate (steps and ranks spread by 1 to 3% in traces of petuum/adaptdl and siasosp23/artifacts; the middle)",
        }
    )

    @property
    def ahead(self) -> bool:
        """Whether batches are prepared while others are trained on: not in the training process, nor on the GPU that trains."""
        return self.num_workers > 0 if self.loader == "pytorch" else self.loader != "dali_gpu"

    @property
    def jitter(self) -> float:
        """Return the coefficient of variation of compute time that the loader causes."""
        return self.compute_cv if self.loader == "pytorch" else 0.0
