"""Which GPU does a name in somebody's table mean? The one with its number, form, memory and variant, whatever words stand around those.

1. A name or alias of a GPU means it, apart from case, punctuation, maker, family (GeForce RTX), number of GPUs and words around it.
2. Otherwise a GPU fits that has the number, and the form (SXM, PCIe, NVL), memory and variant (HBM2e, 500W) that the name states.
3. A name without a form means boards of the form that the number alone means: `A100 40GB` is an SXM board. If the number alone means no
   GPU, any form fits.
4. Of several GPUs the one comes first that the number alone means, then those with the least memory: in Lambda's 59 rows of `A100_PCIe`,
   beside those of `A100_80GB_PCIe`, batches are those of 40 GB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from sim.spec.catalog import aliases_of, all_files

PARTS_FOLDER: Final = "hardware/parts/gpus"
_SHOWN: Final[Mapping[str, str]] = {"h100-pcie-80gb": "H100 80GB HBM2e"}
"""Names without a form that only one board has (NVIDIA's data sheets: of the H100 of 80 GB, only the PCIe board has HBM2e)."""
_SAME_MEMORY: Final = 0.12
"""Largest relative difference of two figures for the same memory: some makers' GB are GiB, and parts are reserved (B200: 180 of 192)."""
_BEFORE: Final = re.compile(r"^\s*(\d+)\s*[x*\u00d7]\s*(?=\D)", re.IGNORECASE)
_AFTER: Final = re.compile(r"(?<![a-z])\s*\(?(?<![a-z])[x*\u00d7]\s*(\d+)\)?\s*$", re.IGNORECASE)
"""The number of GPUs, before or after their name."""
_MACHINES: Final = re.compile(r"\b[hd]gx\b|nvl72", re.IGNORECASE)
"""What a number counts that stands beside these: machines, not GPUs."""
_FAMILIES: Final = re.compile(r"nvidia|amd|instinct|tesla|geforce|quadro|(rtx|gtx)[-_ ]?(?=[a\d])(?![568]000(?![-_ ]*ada))")
"""Words before the number of a GPU that people leave out; not of RTX 5000, 6000 and 8000, whose numbers several generations have."""
_FORM: Final = re.compile(r"(?<![a-z])(pcie|sxm|nvl|gcd)s?\d?(?![a-z\d])|(?<=\d)(pcie|sxm)\d?(?=[\d\s]|$)")
_MEMORY: Final = re.compile(r"(?<![\da-z])(\d+)\s*gi?b?(?![a-z\d])")
_BARE_MEMORY: Final = re.compile(r"(?<=[a-z\d])[-_ ](16|24|32|40|48|80|94|96|141|180|192|256|288)\s*$", re.IGNORECASE)
"""A memory without its unit, as in A100-80."""
_VARIANT: Final = re.compile(r"\b(hbm2e|\d+w)\b")
"""Words that distinguish boards of the same name, form and memory; a name without them does not mean such a board."""
_AROUND: Final = re.compile(
    r"\b(gpus?|cards?|[hd]gx|nvlink\d?|nvswitch|nvl72|tensor core|edition|server|workstation|generation|oam|g?ddr\d\w*|hbm(2|3|3e)?|"
    r"blackwell|ampere|hopper|volta|pascal|turing|each|per node)\b"
)
"""Words around a GPU's name that do not distinguish it from others."""


class _GpuWords(NamedTuple):
    """A GPU's name in parts: its number, such as ``a100``, the form of its board, memory in GB (0: not stated), and the variant."""

    number: str
    form: str = ""
    memory: float = 0.0
    variant: str = ""

    def fits(self, stated: _GpuWords) -> bool:
        """Return whether this GPU has everything that a name *stated*."""
        same_memory = not stated.memory or not self.memory or abs(stated.memory / self.memory - 1.0) <= _SAME_MEMORY
        same_form = not stated.form or not self.form or stated.form == self.form
        return self.number == stated.number and same_memory and same_form and self.variant in ("", stated.variant)


class GpuNames:
    """GPUs by what people call them: *names* are the names and aliases of each GPU, *memories* the GB of those whose names lack them."""

    def __init__(self, names: Mapping[str, Iterable[str]], memories: Mapping[str, float] | None = None) -> None:
        self._spelled: dict[str, str] = {}
        self._words: dict[str, _GpuWords] = {}
        for gpu, aliases in names.items():
            for each in (gpu, *aliases):
                self._spelled.setdefault(_letters(each), gpu)
            words = _words_of(gpu)
            self._words[gpu] = words._replace(memory=words.memory or (memories or {}).get(gpu, 0.0))

    def meant(self, name: str) -> tuple[str, ...]:
        """Return the GPUs that *name* may mean, the likeliest first."""
        for text in _readings(without_count(name)):
            if (gpu := self._spelled.get(_letters(text))) is not None:
                return (gpu,)
        for text in _readings(without_count(name)):
            if fitting := self._fitting(_words_of(text)):
                return fitting
        return ()

    def of_same_number(self, name: str) -> tuple[str, ...]:
        """Return the GPUs with the number that *name* states, those with the form and nearest to the memory that it states first."""
        stated = _words_of(without_count(name))
        same = {gpu: words for gpu, words in self._words.items() if words.number == stated.number}

        def distance(gpu: str) -> tuple[bool, float]:
            words = same[gpu]
            is_known = stated.memory > 0.0 and words.memory > 0.0
            return bool(stated.form) and words.form != stated.form, abs(words.memory / stated.memory - 1.0) if is_known else 0.0

        return tuple(sorted(same, key=distance)) if stated.number else ()

    def _fitting(self, stated: _GpuWords) -> tuple[str, ...]:
        if not stated.number:
            return ()
        usual = self._spelled.get(stated.number)
        if not stated.form and usual is not None:
            stated = stated._replace(form=self._words[usual].form)
        fitting = [gpu for gpu, words in self._words.items() if words.fits(stated)]
        return tuple(sorted(fitting, key=lambda gpu: (gpu != usual, self._words[gpu].memory)))


@lru_cache(maxsize=1)
def catalog_gpus() -> GpuNames:
    """Return the GPUs of the catalog, by the names of their parts and their aliases."""
    return GpuNames(aliases_by_part())


def aliases_by_part() -> dict[str, list[str]]:
    """Return the other names of each GPU of the catalog, by the name of its part, in alphabetical order."""
    shown = {part: [name] for part, name in _SHOWN.items()}
    return {part: [*aliases_of(path), *shown.get(part, ())] for part, path in sorted(all_files(PARTS_FOLDER).items())}


def number_of(gpu: str) -> str:
    """Return the number in the name of a GPU of the catalog, such as ``v100`` of ``V100-SXM2-16GB``."""
    return _words_of(gpu).number


def count_of(name: str) -> int | None:
    """Return how many GPUs *name* says there are, as in ``8x V100`` or ``H100 x8``; None if it does not, or counts machines."""
    stated = _BEFORE.search(name) or _AFTER.search(name)
    return int(stated.group(1)) if stated and not _MACHINES.search(name) else None


def without_count(name: str) -> str:
    """Return *name* without the number of GPUs."""
    return _AFTER.sub("", _BEFORE.sub("", name)).strip()


def _readings(name: str) -> Iterator[str]:
    """Yield *name*, and what it is without words around it and without remarks, the most literal first; last, with GB after a memory."""
    for text in (name, re.sub(r"\(.*?\)", " ", name), _BARE_MEMORY.sub(r" \1GB", name)):
        yield text
        yield _AROUND.sub(" ", re.sub(r"[-_(),/]+", " ", text.lower()))


def _words_of(name: str) -> _GpuWords:
    plain = re.sub(r"[-_(),/]+", " ", name.lower())
    form, memory, variant = _FORM.search(plain), _MEMORY.search(plain), _VARIANT.search(plain)
    rest = _VARIANT.sub(" ", _MEMORY.sub(" ", _FORM.sub(" ", plain)))
    board = (form.group(1) or form.group(2)) if form else ""
    return _GpuWords(_letters(rest), board, float(memory.group(1)) if memory else 0.0, variant.group() if variant else "")


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", _FAMILIES.sub("", name.lower()))
