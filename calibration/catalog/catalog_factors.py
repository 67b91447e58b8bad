"""How do factors fitted to one-GPU rows get into the catalog? Those of GPUs and software stacks are fitted together and written there.

Only values whose source line states that they were fitted to ``records/single_gpu.csv``, or are the mean of fitted ones, are replaced;
nothing else in a file changes. Run it after a change of the layer model: ``python -m calibration.catalog.catalog_factors``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml

from calibration.catalog.compute import Factors, fit
from calibration.catalog.compute_model import multiprocessor_of, read_rows
from calibration.catalog.without_source import gpu_factors, stack_factors
from sim.spec.catalog import all_files
from sim.spec.hardware import Gpu
from sim.spec.library import load_part
from sim.spec.stack import Stack
from sim.spec.whole_file import write_file

FITTED_SOURCE: Final = "fitted to the rows of role compute on GPUs of compute capability"
SHARED_SOURCE: Final = "estimate (mean of the architectures with rows in calibration/records/single_gpu.csv"
STACK_SOURCE: Final = re.compile(r"fitted to the \d+ rows of this stack and role compute")


def replace_values(text: str, values: dict[str, str]) -> str:
    """Return the YAML *text* with *values* in place of the values of top-level keys."""
    for key, value in values.items():
        text = re.sub(rf"(?m)^{key}: .*$", f"{key}: {value}", text)
    return text


def gpu_values(path: Path, factors: Factors) -> dict[str, str]:
    """Return new values for the fitted fields that the GPU's file *path* itself sets."""
    gpu = load_part(Gpu, path.stem)
    own = gpu_factors(multiprocessor_of(gpu), factors)
    shared = gpu_factors("", factors)
    sources = _sources(path)
    values = {key: f"{value:.3g}" for key, value in own.items() if FITTED_SOURCE in sources.get(key, "")}
    return values | {key: f"{value:.3g}" for key, value in shared.items() if sources.get(key, "").startswith(SHARED_SOURCE)}


def stack_values(path: Path, factors: Factors) -> dict[str, str]:
    """Return new values for the fitted fields that the stack's file *path* itself sets."""
    values = stack_factors(load_part(Stack, path.stem), path.stem, factors)
    sources = _sources(path)
    return {
        key: f"{value * 1e6:.3g} us" if key == "launch_cpu" else f"{value:.3g}"
        for key, value in values.items()
        if STACK_SOURCE.match(sources.get(key, ""))
    }


FITTED_FOLDERS: Final[tuple[tuple[str, Callable[[Path, Factors], dict[str, str]]], ...]] = (
    ("hardware/parts/gpus", gpu_values),
    ("workloads/stacks", stack_values),
)
"""Folders whose files have fitted values, each with the function that returns the new values of a file."""


def _sources(path: Path) -> dict[str, str]:
    source = yaml.safe_load(path.read_text(encoding="utf-8")).get("source")
    return {key: text or "" for key, text in source.items()} if isinstance(source, dict) else {}


def main() -> None:
    """Fit the factors to all rows, and write them to the catalog."""
    factors = fit(read_rows())
    for folder, of in FITTED_FOLDERS:
        for path in all_files(folder).values():
            before = path.read_text(encoding="utf-8")
            after = replace_values(before, of(path, factors))
            if after != before:
                write_file(path, after)


if __name__ == "__main__":
    main()
