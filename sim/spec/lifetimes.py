"""How long do transient (spot) machines live? Measured times to revocation, and the number of machines that outlived the measurement.

One file describes some GPUs of one provider: when machines were revoked, how many survived until the provider's limit, and how long a
machine takes to start. `sim.analysis.transient` estimates a distribution from it.
"""

from pydantic import Field

from sim.spec.fields import Duration, Source, Spec, Whole


class Phases(Spec):
    """Phases of a machine's start-up, from the request to its first process. Jobs pay for all of it, as for that of other machines."""

    provisioning: Duration
    """Time until a machine is found."""
    staging: Duration
    """Time from then until the machine is prepared."""
    booting: Duration
    """Time from then until its first process runs."""

    @property
    def total(self) -> float:
        """Return the total time of all phases (s)."""
        return self.provisioning + self.staging + self.booting


class Lifetimes(Spec):
    """Lifetimes of transient machines with one of *gpus*, counted from their start."""

    name: str
    gpus: tuple[str, ...] = Field(min_length=1)
    """Catalog names of the GPUs of these machines."""
    provider: str
    """Provider of the machines."""
    date: str
    """When the lifetimes were observed."""
    cap: Duration
    """Maximum lifetime: the provider revokes every machine after this time."""
    revoked: tuple[Duration, ...]
    """Time to revocation of each machine that was revoked before ``cap``."""
    survived: Whole
    """Number of machines that lived until ``cap``."""
    start_up: Phases
    """Start-up of a transient machine."""
    on_demand_start_up: Phases
    """Start-up of an on-demand machine."""
    replacement: Duration
    """Time from the request for a replacement, right after a revocation, until it runs."""
    source: Source
