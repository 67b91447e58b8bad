"""How large were the errors of predictions for measured runs? By group of runs, from the summaries that come with the catalogue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sim.spec.catalogue import roots

SUMMARY = "hardware/validated.json"


@lru_cache(maxsize=2)
def validated_groups(summary: str = SUMMARY) -> Mapping[str, Mapping[str, Any]]:
    """Return the errors by group of runs from the file *summary* of the catalogue; empty if there is no such file."""
    for root in roots():
        path = root / summary
        if path.is_file():
            groups: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["groups"]
            return groups
    return {}
