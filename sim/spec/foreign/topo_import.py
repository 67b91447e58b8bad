"""What is in the topology file of a machine? The output of `nvidia-smi topo -m`, or NCCL's XML file; the first character decides.

NCCL writes its file to the path in ``NCCL_TOPO_DUMP_FILE``. The result is a plain description, `sim.spec.wiring.Wiring`: where GPUs and
NICs are attached, and which have NVLink. It has no names of parts, and only the rates in the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sim.spec.foreign.topo_matrix import read_matrix
from sim.spec.foreign.topo_xml import read_xml
from sim.spec.wiring import Wiring
from sim.spec.yaml import SpecError, read_error_text, require_regular

MAX_BYTES: Final = 4 * 2**20

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
"""Characters that text files do not contain; the escape character is allowed because it starts a color code."""
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of files that PowerShell has written with ``>``."""


def read_topology(path: Path) -> Wiring:
    """Return the wiring in the file *path*. Raise SpecError with the line of the error."""
    require_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {read_error_text(error)}") from None
    if len(content) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES} bytes, which is too large for the topology of one machine")
    try:
        text = content.decode("utf-16" if content[:2] in _UTF_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{path}:{line}: not a text file (byte {error.start} is not {error.encoding.upper()}); {_DUE}") from None
    return parse_topology(text, str(path))


_DUE: Final = "expected the output of 'nvidia-smi topo -m' or the file of NCCL_TOPO_DUMP_FILE"


def parse_topology(text: str, file: str = "<text>") -> Wiring:
    """Return the wiring in *text*; *file* is the name used in messages."""
    if not text.strip():
        raise SpecError(f"{file}:1: empty; {_DUE}")
    if (match := _CONTROL.search(text)) is not None:
        line = text.count("\n", 0, match.start()) + 1
        raise SpecError(f"{file}:{line}: not plain text (character {ord(match[0])}); {_DUE}")
    return read_xml(text, file) if text.lstrip().startswith("<") else read_matrix(text, file)
