"""Which library runs the collectives? NCCL or Gloo, and the environment variables that configure it."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from sim.spec.algorithms import minor_release, not_a_release, other_algorithm
from sim.spec.fields import Count, Duration
from sim.spec.hardware import Transport
from sim.spec.sections import Section
from sim.spec.stack.contradictions import Contradiction, refuse


class Library(Section):
    """The library that runs collectives, and the environment variables that override its choices."""

    backend: Literal["nccl", "gloo"] = "nccl"
    """nccl: NCCL; gloo: Gloo, which communicates through host memory and sockets and needs ``gloo_transport``."""
    gloo_transport: Transport | None = None
    """Transport of one of Gloo's sockets; required with gloo, not allowed with nccl."""
    nccl: str = "2.10"
    """Release of NCCL, such as 2.18 or 2.18.5. It decides the rules that choose the algorithm and protocol of each message: until 2.3 only
    rings, 2.4 trees below a size, then those of 2.5 to 2.12, 2.13 to 2.17, 2.18 to 2.22, or since 2.23."""
    nccl_algo: str | None = None
    """Value of NCCL_ALGO, such as ``Ring`` or ``^Tree``; or an all-reduce of another library (``collective --help`` lists them) or
    of your own. None: NCCL chooses."""
    nccl_proto: str | None = None
    """Value of NCCL_PROTO: ``LL``, ``LL128``, ``Simple``, a list of them, or ``^LL``. None: NCCL chooses."""
    channels: Count | None = None
    """Value of NCCL_MAX_NCHANNELS; None: NCCL chooses."""
    collective_timeout: Duration | None = None
    """Time after which a collective that hangs ends the job. None: that of the reliability data (``goodput --reliability``)."""

    @model_validator(mode="after")
    def _library_agrees(self) -> Self:
        refuse(self._library_contradictions())
        return self

    def _library_contradictions(self) -> Iterator[Contradiction]:
        gloo = self.backend == "gloo"
        yield gloo and not self.gloo_transport, "backend gloo needs a gloo_transport; write gloo_transport: tcp-single-flow"
        yield (
            self.gloo_transport is not None and not gloo,
            "gloo_transport is a gloo option, but backend is nccl; leave it out, or write backend: gloo",
        )
        yield minor_release(self.nccl) is None, f"nccl {not_a_release(self.nccl)}"
        forced = [name for name in ("nccl_algo", "nccl_proto", "channels") if getattr(self, name) is not None]
        yield gloo and bool(forced), f"{', '.join(forced)}: an NCCL option, but backend is gloo; leave it out, or write backend: nccl"
        other = other_algorithm(self.nccl_algo)
        yield (
            bool(other and self.nccl_proto),
            f"nccl_proto {self.nccl_proto}: protocols apply to NCCL's own algorithms, not to {other}; leave it out",
        )
