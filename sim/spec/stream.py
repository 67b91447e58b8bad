"""How are samples streamed from an object store during training? A library downloads shards ahead of use.

``mosaic`` (mosaicml-streaming): each node downloads the shards with its samples once to its local disk and reads them there; samples are
shuffled within blocks of many shards (algorithm py1e). ``huggingface`` (the IterableDataset of datasets): files are read in order, through
a buffer from which samples are drawn. If the number of files is not a multiple of the number of ranks, each rank reads all files and keeps
its share (``split_dataset_by_node``).
"""

from typing import Final, Literal

from pydantic import Field

from sim.spec.fields import Bytes, Fraction, Source, Spec, Whole
from sim.spec.stores import Store

SHUFFLED: Final = {"mosaic": 262_144, "huggingface": 1_000}
"""Default number of samples that are shuffled together: a block of streaming (at least 2**18), or the shuffle buffer of datasets."""


class Stream(Spec):
    """Samples that are downloaded during training."""

    store: Store
    """The object store, a part of ``hardware/parts/stores``. Its ``per_writer`` limits the download rate of one worker."""
    library: Literal["mosaic", "huggingface"] = "mosaic"
    """The library that downloads the samples."""
    shard: Bytes = 2.0**26
    """Size of a shard on the node, uncompressed."""
    files: Whole = 0
    """Number of files of the data set, for ``huggingface``; 0: a multiple of the number of ranks."""
    compressed: Fraction = Field(default=1.0, gt=0)
    """Bytes in the store per byte on the node."""
    shuffled: Whole | None = None
    """Number of samples that are shuffled together; None: the library's default."""
    source: Source = (
        "mosaicml/streaming writer size_limit 2**26, shuffle_block_size 2**18; huggingface/datasets buffer_size 1000 (general knowledge)"
    )

    def repeats(self, ranks: int) -> int:
        """Return how many times each sample is downloaded in total by *ranks* that share the data set."""
        return ranks if self.library == "huggingface" and self.files % ranks else 1

    @property
    def window(self) -> int:
        """Return the number of samples that are shuffled together."""
        return SHUFFLED[self.library] if self.shuffled is None else self.shuffled
