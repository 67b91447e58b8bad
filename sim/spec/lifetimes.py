"""How long do transient machines live? Times to revocation that were measured, and how many machines outlived the measurement.

One file describes the GPUs of one provider: when machines were revoked, how many survived until the provider's cap, and how long a
machine takes to start. `sim.analysis.transient` makes a distribution of it.
"""

from __future__ import annotations

from pydantic import Field

from sim.spec.fields import Seconds, Source, Spec, Whole


class Phases(Spec):
    """What a machine goes through between its request and its first process; only booting is paid for."""

    provisioning: Seconds
    """Until a machine is found."""
    staging: Seconds
    """Until it is prepared."""
    booting: Seconds
    """Until its first process runs."""

    @property
    def total(self) -> float:
        """Return the seconds of all phases."""
        return self.provisioning + self.staging + self.booting


class Lifetimes(Spec):
    """Lifetimes of transient machines with one of *gpus*, from their start on."""

    name: str
    gpus: tuple[str, ...] = Field(min_length=1)
    """Names of GPUs in the catalogue that these machines carry."""
    provider: str
    """Whose machines they are."""
    date: str
    """When lifetimes were observed."""
    cap: Seconds
    """The provider takes every machine back after this time."""
    revoked: tuple[Seconds, ...]
    """Time to revocation of each machine that was revoked before the cap."""
    survived: Whole
    """Machines that lived until the cap."""
    start_up: Phases
    """Of a transient machine."""
    on_demand_start_up: Phases
    """Of a machine that is not taken back."""
    replacement: Seconds
    """From asking for a replacement right after a revocation until it runs."""
    source: Source
