"""Which of Megatron-LM's arguments does the workload not represent? Notes, refused typos, and the options for unsupported kinds of layers.

Names are from megatron/training/arguments.py. An option that is spelled almost like one that is read is a typo, which Megatron-LM would
reject.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from sim.spec.fields import Fp8Recipe
from sim.spec.yaml import SpecError

OTHER_LAYERS: Final = (
    "is-hybrid-model", "hybrid-attention-ratio", "hybrid-mlp-ratio",
    "linear-attention-freq", "linear-attention-type", "experimental-attention-variant", "heterogeneous-layers-config-path",
    "heterogeneous-layers-config-encoded-json",
)  # fmt: skip
"""Options for linear attention, layers of different sizes, or, unless there is a pattern, state-space layers."""
FP8_RECIPES: Final[tuple[Fp8Recipe, ...]] = ("delayed", "tensorwise", "blockwise", "mxfp8")
"""Values of --fp8-recipe that are modeled, the default first."""
_ALIKE: Final = 0.93
"""Similarity (difflib's ratio) from which an unknown option is a typo; no two options that are read are so similar."""
_RAMP: Final = re.compile(r"--rampup-batch-size[=\s]+([\d_]{1,12})\s+([\d_]{1,12})\s+([\d_]{1,20})\b")


def unread(text: str, said: Mapping[str, str], sequence: int | None) -> Iterator[str]:
    """Yield notes on the options *said* in *text* that are not modeled; *sequence* is the tokens of a sample."""
    if ramp := _RAMP.search(text):
        start, step, samples = (number.replace("_", "") for number in ramp.groups())  # argparse reads 9_765_625
        tokens = str(int(samples) * sequence) if sequence else f"{samples} x sequence"
        yield (
            f"--rampup-batch-size {start} {step} {samples} is ignored: for a token budget, write pretraining: {{batch_ramp: {{start: "
            f"{start}, step: {step}, tokens: {tokens}}}}}"
        )
    if "fp8-format" in said and (recipe := said.get("fp8-recipe", FP8_RECIPES[0])) not in FP8_RECIPES:
        yield f"--fp8-recipe {recipe} is not modeled: the workload uses {FP8_RECIPES[0]}"


def refuse_typos(said: Collection[str], read: Collection[str], place: str) -> None:
    """Raise SpecError for an option of *said* that is not in *read*, but spelled almost like one of them."""
    for option in said:
        if option not in read and (near := difflib.get_close_matches(option, read, n=1, cutoff=_ALIKE)):
            raise SpecError(f"{place}: unknown option --{option}; did you mean --{near[0]}?")
