"""Which words can complete the command line? Names of the catalog for shell completion; if none matches, the shell offers files."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args


def complete_folders(*folders: str) -> Callable[[str], list[str]]:
    """Return a function that completes names in *folders* of the catalog, such as ``hardware``."""

    def complete(incomplete: str) -> list[str]:
        from sim.spec.catalog import catalog

        return [name for folder in folders for name in catalog(folder) if name.startswith(incomplete)]

    return complete


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Return a function that completes one of *words*."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def precisions(incomplete: str) -> list[str]:
    """Return the precisions that begin with *incomplete*."""
    from sim.spec.fields import Precision

    return [name for name in get_args(Precision) if name.startswith(incomplete)]


def fp8_recipes(incomplete: str) -> list[str]:
    """Return the FP8 recipes that begin with *incomplete*."""
    from sim.spec.fields import Fp8Recipe

    return [name for name in get_args(Fp8Recipe) if name.startswith(incomplete)]


hardware = complete_folders("hardware")
workloads = complete_folders("workloads", "workloads/jobs")
either = complete_folders("hardware", "workloads", "workloads/jobs")
jobs = complete_folders("workloads/jobs")
stacks = complete_folders("workloads/stacks")
gpus = complete_folders("hardware/parts/gpus")
cpus = complete_folders("hardware/parts/cpus")
stores = complete_folders("hardware/parts/stores")
