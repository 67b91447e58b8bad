"""Where do checkpoints go, and how fast? A store that all nodes of a job share: what it sustains in all, and what one writer gets."""

from __future__ import annotations

from sim.spec.fields import Bandwidth, Bytes, Seconds, Source, Spec


class Store(Spec):
    """One object store or parallel file system (``hardware/parts/stores``)."""

    name: str
    bandwidth: Bandwidth
    """That all writers together sustain; reads take the same."""
    per_writer: Bandwidth | None = None
    """Most that one writing process reaches; None: the store or the network bounds it."""
    start: Seconds = 0.0
    """Until the first byte of a checkpoint flows: metadata, one file for each writer, the barrier at the end."""
    size: Bytes | None = None
    """Bytes that it holds; None: more than any checkpoint."""
    source: Source
