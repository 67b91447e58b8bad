"""Which layers does a torch model have? This package traces one training step on torch's meta device and writes the layer table.

It is the only place under ``sim/`` that imports torch, and only when called. Read on: ``target`` (which model did the user name?),
``trace`` (which operators run?), ``operators`` (what does each cost?), ``layers`` (which of them form a layer?), ``table`` (what is
written?).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.extract import table
from sim.extract.archive import EXPORTED, check_archive
from sim.extract.table import write
from sim.extract.target import check_code, check_target, parse_arguments, parse_input
from sim.spec.model import Model
from sim.spec.yaml import SpecError

__all__ = ["extract", "run_extract", "write"]


def extract(target: str, inputs: Sequence[str], name: str, arguments: Mapping[str, Any] | None = None, command: str = "") -> Model:
    """Return the layer table of a torch model, per sample.

    Parameters
    ----------
    target
        ``module:callable`` or ``file.py:callable``, which must return a ``torch.nn.Module``; its code is run. Or a ``.pt2`` file written
        by ``torch.export.save``, which contains its own inputs.
    inputs
        One text per input of ``forward``: ``3x224x224``, ``input_ids=384:int64``; or a single ``@module:callable`` that takes the batch
        size and returns the inputs.
    name
        Name of the table.
    arguments
        Keyword arguments of the call.
    command
        The command line to record.

    Raises
    ------
    SpecError
        If torch is missing, the target is not found or fails, or the model cannot be described.
    """
    check_code(target)
    if target.endswith(EXPORTED):
        check_archive(Path(target))
    else:
        check_target(target)
    if not inputs and not target.endswith(EXPORTED):
        example = "input_ids=128:int64" if target.startswith("transformers:") else "3x224x224"
        raise SpecError(f"{target}: the shape of its inputs is missing; write, for example, --input {example}")
    for text in inputs:
        if not text.startswith("@"):
            parse_input(text)
    try:
        from sim.extract.run import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise SpecError("extract needs torch, which is not installed: pip install torch") from None
    return run(name, target, inputs, dict(arguments or {}), command)


def run_extract(target: str, inputs: Sequence[str], output: Path, name: str | None = None, arguments: Sequence[str] = ()) -> Model:
    """Extract *target* into the file *output* and return the table; nothing is written if any part fails.

    *inputs* and *arguments* are the texts of ``--input`` and ``--arg``; *name* defaults to the name of the file.
    """
    words = ["python", "-m", "sim", "extract", target]
    words += [word for text in inputs for word in ("--input", text)] + [word for text in arguments for word in ("--arg", text)]
    words += ["--name", name] if name else []
    command = shlex.join([*words, "-o", output.as_posix()])
    model = extract(target, inputs, name or output.stem, parse_arguments(arguments), command)
    table.write(model, output)
    return model
