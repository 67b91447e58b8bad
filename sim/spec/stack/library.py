"""What moves gradients? The collective library of a software stack, NCCL or Gloo, and what its environment says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import model_validator

from sim.spec import extensions
from sim.spec.fields import Count, Spec
from sim.spec.hardware import Transport
from sim.spec.stack.contradictions import Contradiction, refuse

OTHER_ALGORITHMS = ("Hierarchical", "RackHierarchical", "HalvingDoubling")
"""All-reduces that NCCL does not have (Horovod's, Gloo's and MPI's); each is asked for alone in ``nccl_algo``."""

NCCL_ALGORITHMS = ("ring", "tree", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
"""Names that are NCCL's own, in small letters."""


def other_algorithm(text: str | None) -> str | None:
    """Return the algorithm that NCCL does not have which *text* names, if it does: of another library, or the user's own."""
    name = (text or "").replace("_", "").lower()
    match = next((algorithm for algorithm in OTHER_ALGORITHMS if algorithm.lower() == name), None)
    if match is None and text and name not in NCCL_ALGORITHMS and text in extensions.names(extensions.COLLECTIVES):
        return text
    return match


class Library(Spec):
    """What carries collectives, and what is forced on it."""

    backend: Literal["nccl", "gloo"] = "nccl"
    """gloo: through host memory and sockets; its ``gloo_transport`` says what one socket carries."""
    gloo_transport: Transport | None = None
    """What one of Gloo's sockets carries."""
    nccl: str = "2.10"
    """Version whose rules choose algorithm and protocol of each message: 2.3 (rings alone), 2.4 (trees below a size), 2.10 or 2.30."""
    nccl_algo: str | None = None
    """What NCCL_ALGO says, such as ``Ring`` or ``^Tree``; or one of ``OTHER_ALGORITHMS``, or an all-reduce of your own."""
    nccl_proto: str | None = None
    """What NCCL_PROTO says: ``LL``, ``LL128``, ``Simple``, a list of them, or ``^LL``."""
    channels: Count | None = None
    """What NCCL_MAX_NCHANNELS says."""

    @model_validator(mode="after")
    def _library_agrees(self) -> Library:
        refuse(self._library_contradictions())
        return self

    def _library_contradictions(self) -> Iterator[Contradiction]:
        gloo = self.backend == "gloo"
        yield gloo and not self.gloo_transport, "backend gloo needs a gloo_transport; write gloo_transport: tcp-single-flow"
        yield (
            self.gloo_transport is not None and not gloo,
            "gloo_transport is gloo's, but the backend is nccl; leave it out, or write backend: gloo",
        )
        forced = [name for name in ("nccl_algo", "nccl_proto", "channels") if getattr(self, name) is not None]
        yield gloo and bool(forced), f"{', '.join(forced)}: NCCL's, but the backend is gloo; leave it out, or write backend: nccl"
        other = other_algorithm(self.nccl_algo)
        yield (
            bool(other and self.nccl_proto),
            f"nccl_proto {self.nccl_proto}: NCCL's protocols carry NCCL's algorithms; {other} has none, so leave it out",
        )
