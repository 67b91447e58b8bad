"""How do samples come from an object store while training runs? Shards that a library downloads ahead of use.

``mosaic`` (mosaicml-streaming): each node downloads the shards that hold its samples, once, to its local disk, and reads them there;
samples are shuffled inside blocks of many shards (algorithm py1e). ``huggingface`` (datasets' IterableDataset): files are read as they
come, through a buffer from which samples are drawn; where the ranks do not divide the files, each rank reads all of them and keeps its
share (``split_dataset_by_node``).
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from sim.spec.fields import Bytes, Fraction, Source, Spec, Whole
from sim.spec.stores import Store

SHUFFLED: Final = {"mosaic": 262_144, "huggingface": 1_000}
"""Samples of a block (streaming: 2**18 at least), and of datasets' shuffle buffer."""


class Stream(Spec):
    """Samples that are downloaded while training runs."""

    store: Store
    """Where they lie: a part of ``hardware/parts/stores``; ``per_writer`` is what one worker reads."""
    library: Literal["mosaic", "huggingface"] = "mosaic"
    """Which library reads them."""
    shard: Bytes = 2.0**26
    """Bytes of a shard as it lies on the node."""
    files: Whole = 0
    """Files of the data set, for ``huggingface``; 0: as many as the ranks divide."""
    compressed: Fraction = Field(default=1.0, gt=0)
    """Bytes in the store for one on the node."""
    shuffled: Whole | None = None
    """Samples that are shuffled among each other; None: as the library does without being told."""
    source: Source = (
        "mosaicml/streaming writer size_limit 2**26, shuffle_block_size 2**18; huggingface/datasets buffer_size 1000 (general knowledge)"
    )

    def repeats(self, ranks: int) -> int:
        """Return how often *ranks* that share the data set download each sample together."""
        return ranks if self.library == "huggingface" and self.files % ranks else 1

    @property
    def window(self) -> int:
        """Return the samples that are shuffled among each other."""
        return SHUFFLED[self.library] if self.shuffled is None else self.shuffled
