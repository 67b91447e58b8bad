"""Which models of the catalog need not be compared with torch again? ``make compared`` compares all and writes down what was compared.

``compared.json`` has the SHA-256 of each layer table and of the code that traces and compares. A model with another table is compared by
`make test`; with other code a draw of four is, by the hash of the code. `make nightly` compares all.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.extract.tables import traced_models

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMPARED = HERE / "compared.json"
TESTS = ("test_catalog.py", "test_memory_peak.py")
CODE = ("sim/extract/*.py", "sim/analysis/memory*.py", "tests/extract/allocation.py", *(f"tests/extract/{name}" for name in TESTS))
DRAWN = 4


def cases(names: Iterable[str]) -> list[Any]:
    """Return *names* for ``parametrize``, those that need not be compared again marked nightly."""
    pending = models_due()
    return [pytest.param(name, marks=pytest.mark.slow if name in pending else pytest.mark.nightly) for name in names]


@cache
def models_due() -> frozenset[str]:
    """Return the models to compare: those whose table is not the one that was compared, and a draw where the code is not."""
    before = json.loads(COMPARED.read_text(encoding="utf-8"))
    return due_of(before, now())


def due_of(before: dict[str, Any], current: dict[str, Any]) -> frozenset[str]:
    """Return what of *current* (hashes of the code and of the models) differs from what was compared *before*."""
    tables: dict[str, str] = current["models"]
    pending = {name for name, digest in tables.items() if before["models"].get(name) != digest}
    if before["code"] != current["code"]:
        pending |= set(sorted(tables, key=lambda name: _sha256([current["code"], name]))[:DRAWN])
    return frozenset(pending)


def now() -> dict[str, Any]:
    """Return the hashes of the code and of each traced model's table."""
    code = _sha256(path.read_text(encoding="utf-8") for pattern in CODE for path in sorted(ROOT.glob(pattern)))
    return {"code": code, "models": {name: _sha256([path.read_text(encoding="utf-8")]) for name, path in sorted(traced_models().items())}}


def _sha256(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def main() -> int:
    """Compare every model with torch; write the hashes if all are equal. Return pytest's exit code."""
    code = int(pytest.main([*(str(HERE / name) for name in TESTS), "-q", "--numprocesses", "auto"]))
    if code == 0:
        COMPARED.write_text(json.dumps(now(), indent=1) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
