"""How do errors name NCCL's environment variables? As the user set them: as options of ``collective``, or as fields of a software stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sim.spec.yaml import SpecError


@contextmanager
def nccl_variables_named(algorithms: str = "training.stack.nccl_algo", protocols: str = "training.stack.nccl_proto") -> Iterator[None]:
    """Name NCCL_ALGO and NCCL_PROTO in each SpecError as *algorithms* and *protocols*, options (``--algo``) or fields."""
    names = {"NCCL_ALGO": algorithms, "NCCL_PROTO": protocols}

    def named(match: re.Match[str]) -> str:
        name = names[match[1]]
        return f"{name} " if match[2] and name.startswith("--") else f"{name}{match[2]}"

    try:
        yield
    except SpecError as error:
        problems = [re.sub(r"\b(NCCL_ALGO|NCCL_PROTO)(=?)", named, problem) for problem in error.problems]
        if problems == error.problems:
            raise
        raise SpecError(problems) from None
