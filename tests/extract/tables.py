"""The catalog's layer tables that ``sim extract`` wrote, by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sim.spec.library import catalog


@cache
def traced_models() -> dict[str, Path]:
    """Return them; the other models are decoders, described by their shape."""
    return {name: path for name, path in catalog("workloads/models").items() if "\ntransformer:" not in path.read_text(encoding="utf-8")}
