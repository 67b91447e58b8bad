"""What do the precisions and numbers in other people's tables of data-parallel runs mean? Only words with one meaning are read.

A table says ``AMP``, ``bf16-mixed`` or ``float32``, and ``1,290`` or ``290 ms``; records say ``amp_fp16``, ``amp_bf16`` or ``fp32``, and
``1290`` or ``0.29``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, get_args

from calibration.cells import read_cell
from sim.spec.fields import Precision

NAMES_OF_COLUMNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cluster", "instance", "instance_type", "machine"), "hardware"),
    **dict.fromkeys(("comment", "notes"), "note"),
    **dict.fromkeys(("hosts", "num_nodes"), "nodes"),
}
"""Names in all kinds of tables for columns that records have in all tables."""
_COUNT_OF: Final = re.compile(r"#\s*|(?:no\.?|num(?:ber)?)\s+of\s+")
_IN_BRACKETS: Final = re.compile(r"\s*[\[(](s|ms)(?:ec)?(?:onds)?[\])]$")
_PER_BRACKETS: Final = re.compile(r"\s*[\[(](per[ _-]\w+)[\])]")
_MIXED: Final = r"amp|auto(matic )?mixed|mixed|autocast|o1"
_PRECISIONS: Final[tuple[tuple[str, Precision], ...]] = (
    (rf"(?=.*\b(bf16|bfloat16)\b)(?=.*\b({_MIXED})\b).*", "amp_bf16"),
    (r"(?=.*\b(amp|mixed|autocast|o1)\b)(native|torch|cuda|apex|amp|auto(matic)?|mixed|precision|autocast|o1|level| )+", "amp_fp16"),
    (r"(apex )?(amp )?o2( apex)?", "fp16"),
    (rf"(?=.*\b(fp16|float16|16|half)\b)(?=.*\b({_MIXED})\b).*", "amp_fp16"),
    (r"(torch )?(fp32|float32|float|single( precision)?|32|f32)( true)?( precision)?", "fp32"),
    (r"tf32|tensorfloat ?32|fp32 tf32|tf32 fp32", "tf32"),
    (r"(torch )?(fp16|float16|half( precision)?|f16)( true)?( o2)?|16 true|o2", "fp16"),
    (r"(torch )?(bf16|bfloat16)( true)?", "bf16"),
    (r"(amp )?(fp8|float8)( hybrid| e4m3| delayed)?", "fp8"),
)
"""Patterns of words, separated by spaces, in the order in which they are tried. PyTorch's and TensorFlow's automatic mixed precision is in
float16 unless it says bfloat16; apex's O1 is like it, and its O2 keeps weights in float16."""


def plain_column(name: str) -> str:
    """Return the name of a column in lower case, with underscores: ``# GPUs`` is ``num_gpus``, ``Step Time (ms)`` is ``step_time_ms``.

    ``Batch Size (per GPU)`` is ``batch_size_per_gpu``.
    """
    plain = _PER_BRACKETS.sub(r" \1", name.strip().lower())
    if count := _COUNT_OF.match(plain):
        plain = f"num_{plain[count.end() :]}"
    return _IN_BRACKETS.sub(r"_\1", plain).replace(" ", "_").replace("-", "_")


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


_AROUND: Final = re.compile(r"\b(aws|amazon|ec2|azure|gcp|google cloud|nvidia)\b|^ml\.|^standard_|\bv1\.5$")
"""Words around the names of machines and models that change nothing: providers, and the version of ResNet-50 that torchvision has."""


def plain_name(name: str) -> str:
    """Return *name* without case, punctuation, and the words of `_AROUND`."""
    return re.sub(r"[^a-z0-9]", "", _AROUND.sub(" ", name.lower().strip()))


def pointed_name(name: str) -> str:
    """Return `plain_name` with the points inside numbers, by which a model of 1.3 billion differs from one of 13."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]", "", _AROUND.sub(" ", name.lower().strip()))
