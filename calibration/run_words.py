"""What do the precisions and numbers in other people's tables of data-parallel runs mean? Only words with one meaning are read.

A table says ``AMP``, ``bf16-mixed`` or ``float32``, and ``1,290`` or ``290 ms``; records say ``amp_fp16``, ``amp_bf16`` or ``fp32``, and
``1290`` or ``0.29``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, get_args

from calibration.cells import read_cell
from sim.spec.catalogue import STACKS_FOLDER, all_files
from sim.spec.fields import Precision

NAMES_OF_COLUMNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cluster", "instance", "instance_type", "machine"), "hardware"),
    **dict.fromkeys(("comment", "notes"), "note"),
    **dict.fromkeys(("hosts", "num_nodes"), "nodes"),
}
"""Names in all kinds of tables for columns that records have in all tables."""
_MIXED: Final = r"amp|auto(matic )?mixed|mixed|autocast|o1"
_PRECISIONS: Final[tuple[tuple[str, Precision], ...]] = (
    (rf"(?=.*\b(bf16|bfloat16)\b)(?=.*\b({_MIXED})\b).*", "amp_bf16"),
    (r"(native )?amp|auto(matic)? mixed precision|mixed( precision)?|o1|amp o1", "amp_fp16"),
    (rf"(?=.*\b(fp16|float16|16|half)\b)(?=.*\b({_MIXED})\b).*", "amp_fp16"),
    (r"(torch )?(fp32|float32|float|single( precision)?|32|f32)( true)?( precision)?", "fp32"),
    (r"tf32|tensorfloat ?32|fp32 tf32|tf32 fp32", "tf32"),
    (r"(torch )?(fp16|float16|half( precision)?|f16)( true)?( o2)?|16 true|o2", "fp16"),
    (r"(torch )?(bf16|bfloat16)( true)?", "bf16"),
    (r"(amp )?(fp8|float8)( hybrid| e4m3| delayed)?", "fp8"),
)
"""Patterns of words, separated by spaces, in the order in which they are tried. PyTorch's and TensorFlow's automatic mixed precision is in
float16 unless it says bfloat16; apex's O1 is like it, and its O2 keeps weights in float16."""


def precision_meant(text: str) -> str:
    """Return the precision of records that *text* means; *text* itself if it is one, or if it has no known meaning."""
    if text.lower() in get_args(Precision):
        return text
    plain = re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
    return next((precision for pattern, precision in _PRECISIONS if re.fullmatch(pattern, plain)), text)


def number_meant(column: str, text: str) -> str:
    """Return the number in *text* without digit grouping and in the unit of *column*; *text* itself if it has another form."""
    reading = read_cell(column, text)
    return f"{reading.value:.12g}" if reading is not None and ("," in text or reading.words) else text


_TORCH: Final = re.compile(
    r"(?:py)?torch(?: (?:ddp|distributeddataparallel|lightning))?(?: v?(\d+)(?: (\d+))?(?: \d+)?)?(?: ddp)?|ddp|distributeddataparallel"
)
_TORCH_STACKS: Final = (((1, 9), "torch-1.6-ddp"), ((1, 99), "torch-1.13-ddp"), ((99, 0), "torch-2.x-ddp"))
"""Newest release of PyTorch that each stack stands for."""


_HOROVOD: Final = re.compile(r"(?:(?:py)?torch )?horovod(?: v?0 (?P<minor>\d+)(?: \d+)?)?(?: (?:with )?(?:py)?torch)?")
"""Horovod, with its release; without one, the last whose defaults changed (0.21)."""
_TENSORFLOW: Final = re.compile(r"(?:tensorflow|tf) ?2(?: (?:\d+|x))*(?: keras)?(?: (?:multiworker)?mirrored(?: ?strategy)?)?(?: xla)?")
_SERVERS: Final = re.compile(
    r"(?:(?:tensorflow|tf)(?: 1(?: (?:\d+|x))*)? )?(?:parameter servers?|ps) (?P<kind>(?:a?sync(?:hronous)?))"
    r"|(?:(?:tensorflow|tf)(?: 1(?: (?:\d+|x))*)? )?(?P<other>a?sync(?:hronous)?) (?:parameter servers?|ps)"
)
"""Parameter servers, if it is said whether workers wait for each other."""


def stack_meant(text: str) -> str:
    """Return the stack that *text* means: PyTorch's DDP or Horovod by release, TensorFlow 2, or parameter servers; else *text* itself."""
    if text.lower() in all_files(STACKS_FOLDER):
        return text
    plain = re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
    torch = _TORCH.fullmatch(plain)
    if torch:
        release = (int(torch.group(1) or 2), int(torch.group(2) or 0))
        return next(stack for newest, stack in _TORCH_STACKS if release <= newest)
    if horovod := _HOROVOD.fullmatch(plain):
        return "horovod-0.19" if int(horovod["minor"] or 99) <= 20 else "horovod-0.21"
    if _TENSORFLOW.fullmatch(plain):
        return "tensorflow-2.3-xla" if "xla" in plain else "tensorflow-2.3"
    if servers := _SERVERS.fullmatch(plain):
        return "tf-parameter-server" if (servers["kind"] or servers["other"]).startswith("async") else "tf-parameter-server-sync"
    return text


_AROUND: Final = re.compile(r"\b(aws|amazon|ec2|azure|gcp|google cloud|nvidia)\b|^ml\.|^standard_|\bv1\.5$")
"""Words around the names of machines and models that change nothing: providers, and the version of ResNet-50 that torchvision has."""


def plain_name(name: str) -> str:
    """Return *name* without case, punctuation, and the words of `_AROUND`."""
    return re.sub(r"[^a-z0-9]", "", _AROUND.sub(" ", name.lower().strip()))
