"""The catalog's layer tables that ``sim extract`` wrote, by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sim.spec.library import catalogue


@cache
def traced_models() -> dict[str, Path]:
    """Return them; the other models are decoders, described by their shape."""
    return {name: path for name, path in catalogue("workloads/models").items() if "\ntransformer:" not in path.read_text(encoding="utf-8")}
