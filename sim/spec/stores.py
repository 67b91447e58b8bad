"""Where do checkpoints go, and how fast? A store shared by all nodes of a job: its total bandwidth, and the limit of one writer."""

from sim.spec.fields import Bandwidth, Bytes, Seconds, Source, Spec


class Store(Spec):
    """One object store or parallel file system (``hardware/parts/stores``)."""

    name: str
    bandwidth: Bandwidth
    """Sustained bandwidth of all writers together; the same for all readers."""
    per_writer: Bandwidth | None = None
    """Upper limit of the bandwidth of one process; None: limited only by the store and the network."""
    start: Seconds = 0.0
    """Fixed cost of a checkpoint in addition to its bytes: metadata, one file for each writer, the barrier at the end."""
    size: Bytes | None = None
    """Capacity of the store; None: larger than any checkpoint."""
    source: Source
