"""What is the shape of a measured run's model? That of its columns or, where they are blank, of its name (``records/llm/families.yaml``).

A row without layers gets as many as the size in the model's name requires; one without heads gets heads of about 128 elements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from calibration import RECORDS as COMMITTED
from calibration.llm.table import LlmRow
from calibration.run_words import plain_name, pointed_name
from sim.spec.catalog import aliases_of, catalog
from sim.spec.decoder import parameter_count
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.transformer import Transformer

LLM_RECORDS: Final = COMMITTED / "llm"
_MODELS: Final = "workloads/models"
MOST: Final = {"layers": 1_000, "hidden": 1_000_000, "heads": 10_000, "ffn": 10_000_000, "vocab": 10_000_000, "experts": 100_000}
"""Sizes beyond which a cell is a mistake: estimate (the deepest decoder published has 1,000 layers: DeepNet, arXiv 2203.00555)."""
_TUNED: Final = r"-(instruct|chat|hf|base|it|pt|sft|lora)(-.*)?$"
"""Endings of a model's name that mean that it was trained further."""
_ACTIVE: Final = r"(?<=b)-a\d+(\.\d+)?b"
"""Billions of parameters that a token uses, which some leave out."""
_TOTAL: Final = re.compile(r"[-_ (]+(\d+(?:\.\d+)?)\s*([mbt])\)?$")
"""A model's size after its name, in millions, billions or trillions."""
_SIZE: Final = re.compile(r"(?<![a-z\d._])(\d+(?:\.\d+)?)\s*([mbt])(?![a-z\d])")
"""The first size in a model's name that counts neither experts (8x7B) nor active parameters (A3B)."""
_SCALES: Final = {"m": 1e6, "b": 1e9, "t": 1e12}
OTHER_SIZE: Final = 1.8
"""Ratio of a model's parameters to the size in its name from which it is another model: estimate (Falcon3-1B has 1.67 billion)."""
_SAME_SIZE: Final = 0.12
"""Largest relative difference between a model's parameters and the rounded size in its name: estimate (Phi-4 has 14.7 billion, 14B)."""


class CannotDescribe(Exception):
    """The reason why a row is no case."""


def count(row: LlmRow, name: str) -> int:
    """Return the whole number in column *name* of *row*; 0 if it is blank."""
    return int(row.number.get(name, 0))


def axis(row: LlmRow, name: str) -> int:
    """Return the ranks of the axis in column *name* of *row*; 1 if it is blank. Raise CannotDescribe if it is no number."""
    if name in row.non_numeric:
        raise CannotDescribe(row.problem(name))
    return max(1, count(row, name))


@lru_cache(maxsize=4)
def records_yaml(name: str) -> list[dict[str, Any]]:
    """Return the entries of the file *name* of the records."""
    import yaml

    loaded: list[dict[str, Any]] = yaml.safe_load((LLM_RECORDS / name).read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=512)
def _family_entry(model: str) -> dict[str, Any]:
    for entry in records_yaml("families.yaml"):
        if match := re.search(entry["match"], model.lower().replace("_", " ")):
            same = _cataloged(match.expand(entry["catalog"])) if "catalog" in entry else {}
            return same | {key: value for key, value in entry.items() if key not in ("match", "source", "read", "catalog")}
    return {}


@lru_cache(maxsize=1)
def _model_names() -> dict[str, str]:
    """Return the catalog's models by their names, and by the aliases of workloads with the same name."""
    models = catalog(_MODELS)
    aliases = {alias: name for name, path in catalog("workloads").items() if name in models for alias in aliases_of(path)}
    of_gpt3 = {name.replace("gpt3-", "gpt-"): name for name in models if name.startswith("gpt3-")}
    return {**of_gpt3, **aliases, **{name: name for name in models}}


@lru_cache(maxsize=1)
def _by_spelling() -> tuple[tuple[Callable[[str], str], dict[str, list[str]]], ...]:
    """Return the catalog's models by spelling, with what spells a name so: first with points in numbers, and with what tells tuning."""
    untuned = {each: re.sub(_TUNED, "", re.sub(_ACTIVE, "", each)) for each in _model_names()}
    tables = []
    for spell in (pointed_name, plain_name):
        for spelled in ({each: each for each in untuned}, untuned):
            by_spelling: dict[str, list[str]] = {}
            for each, name in spelled.items():
                by_spelling.setdefault(spell(name), []).append(each)
            tables.append((spell, by_spelling))
    return tuple(tables)


def _models_spelled(name: str) -> list[str]:
    """Return the catalog's models that differ from *name* in spelling only; those with other points in numbers if none has the same."""
    same: list[str] = next((models[key] for spell, models in _by_spelling() if (key := spell(name)) in models), [])
    return same[:1] if len({_model_names()[each] for each in same}) == 1 else same


@lru_cache(maxsize=512)
def _cataloged(model: str) -> dict[str, Any]:
    """Return the family and shape of the catalog's decoder *model*, named as on the hub or in words; empty if there is none."""
    name = model.strip().lower().rpartition("/")[2]
    untuned = re.sub(_TUNED, "", re.sub(r"[\s_]+", "-", name))
    listed = next((same[0] for each in (name, untuned) if len(same := _models_spelled(each)) == 1), None)
    stated = _TOTAL.search(name)
    if listed is None and stated is not None:  # Phi-4 14B
        size = float(stated.group(1)) * _SCALES[stated.group(2)]
        same = _models_spelled(name[: stated.start()])
        shape = load_part(Model, _model_names()[same[0]]).transformer if len(same) == 1 else None
        listed = same[0] if shape is not None and abs(parameter_count(shape) / size - 1) < _SAME_SIZE else None
    shape = load_part(Model, _model_names()[listed]).transformer if listed else None
    if listed is None or shape is None:
        return {}
    family = "nemotron-h" if listed.startswith("nemotron") and shape.pattern is not None else re.split(r"[-\d]", listed)[0]
    return {"family": family, **shape.model_dump(exclude_none=True)}


_STATE_SPACES: Final = (
    r"(?<!non.)mamba|rwkv|retnet|nemotron.?(h\b|3(.5)?.?(super|nano|ultra))|jamba|zamba|bamba|recurrent.?gemma|falcon.?h1|kimi.?linear|"
    r"granite.?4(.0)?.?h|lfm.?2|minimax.?(m1|text)|ring.?linear|(?<![a-z])hybrid(?![a-z])"
)
_OTHER_MODELS: Final = {
    r"(?<![a-z])(flan[-_ ]?)?(m|by)?t5(?![a-z])|(?<![a-z])(ul2|bart|whisper|nllb)(?![a-z])|encoder.?decoder": "encoders with decoders (T5)",
    r"(?<![a-z])(vit|dit|swin|unet|sdxl|stable.?diffusion|diffusion|wan.?2|flux)(?![a-z])": "models of images (ViT, diffusion)",
}
"""Reasons for which a model is none of the decoders that a table of transformer runs describes, by a pattern in its class or name."""
_WITH_IMAGES: Final = re.compile(
    r"(?<![a-z])(vl|vlm|vision|omni|multi-?modal|llava\w*|intern-?vl\w*|pixtral|paligemma|audio)(?![a-z])", re.IGNORECASE
)
"""Models that also read images or sound, by their name or class."""
_PROXY: Final = re.compile(r"(?<![a-z])proxy(?![a-z])", re.IGNORECASE)
"""A model with fewer layers than the one whose name it has."""
_LAYERS_IN_NAME: Final = re.compile(r"(?<![\d.])(\d{1,3})[- ]?(?:layers?\b|l\b)", re.IGNORECASE)
_SHARED: Final = re.compile(r"(\d+)\s*(?:routed)?\s*[+(,]+\s*\+?\s*(\d+)\s*shared\)?", re.IGNORECASE)
_SUM: Final = re.compile(r"(\d+)\s*\+\s*(\d+)")
_CHOSEN: Final = re.compile(r"top[-_ ]?(\d+)|(\d+)\s*(?:/|of)\s*\d+", re.IGNORECASE)
"""How cells write the experts that a token uses."""
SHAPE_COLUMNS: Final[Mapping[str, str]] = {
    "layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn_hidden": "ffn", "vocab": "vocab",
    "experts": "experts", "topk": "experts_per_token",
}  # fmt: skip
"""Sizes of a shape by the column that holds them."""


def shape_of(row: LlmRow, assumed: list[str]) -> tuple[str, Transformer]:
    """Return the family and the shape of the model of *row*; assumptions go into *assumed*. Raise CannotDescribe if a size is missing."""
    _refuse_other_models(row)
    if _WITH_IMAGES.search(f"{row.text['class']} {row.text['model']}"):
        assumed.append("a decoder of text: encoders of images or sound are left out")
    if re.search(r"\b(ro)?bert\b|\bbert[-_ ]", row.text["model"], re.IGNORECASE):
        assumed.append("a decoder: an encoder's attention has no mask")
    family, values = _sizes(row, assumed)
    missing = [name for name in ("layers", "hidden", "heads", "vocab") if not values.get(name)]
    unreadable = [row.problem(column) for column, size in SHAPE_COLUMNS.items() if column in row.non_numeric and not values.get(size)]
    if unreadable:
        raise CannotDescribe("; ".join(unreadable))
    if missing:
        of_decoder = "; fill in those of the decoder of text" if _WITH_IMAGES.search(f"{row.text['class']} {row.text['model']}") else ""
        raise CannotDescribe(f"{row.text['model']!r}: {', '.join(missing)} missing in the row, and unknown for this model name{of_decoder}")
    if not (values.get("ffn") or values.get("expert_ffn")) and values.get("activation") != "gelu":
        raise CannotDescribe(f"{row.text['model']!r}: ffn_hidden missing in the row, and unknown for this model name")
    _refuse_mistakes(values)
    _refuse_other_size(row, values)
    positions, length = int(values.get("max_seq") or 0), count(row, "seq_len")
    if values.get("positions") == "learned" or 0 < positions < length:
        values["max_seq"] = max(positions, length)
    if values.get("positions") != "learned" and 0 < positions < length:
        assumed.append(f"{length:,} positions: the model has {positions:,}")
    if "activation" not in values:
        four = values.get("ffn") == 4 * values["hidden"]
        if family == "dense":
            values["activation"] = "gelu" if four else "swiglu"
        elif family == "llama-like":
            values["activation"] = "swiglu"
    if values.get("experts") and "expert_ffn" not in values and "ffn" in values:
        values["expert_ffn"] = values["ffn"]
    return family, Transformer(**values)


def _refuse_other_models(row: LlmRow) -> None:
    """Raise CannotDescribe if the model of *row* is not a decoder."""
    for pattern, reason in _OTHER_MODELS.items():
        if re.search(pattern, f"{row.text['class']} {row.text['model']}", re.IGNORECASE):
            raise CannotDescribe(f"{reason} are not supported; only decoders of attention and feed-forward blocks are")
    if "pattern" in {**_cataloged(row.text["model"]), **_family_entry(row.text["model"])}:
        return
    if re.search(_STATE_SPACES, f"{row.text['class']} {row.text['model']}", re.IGNORECASE):
        layers = "state-space layers (Mamba) or linear attention"
        raise CannotDescribe(f"{row.text['model']!r} has {layers}, and the kind of each layer is unknown: it is not in the catalog")


def _refuse_mistakes(values: Mapping[str, Any]) -> None:
    """Raise CannotDescribe if a size of a model is larger than any."""
    if beyond := [f"{name} {values[name]:,}" for name, most in MOST.items() if int(values.get(name) or 0) > most]:
        raise CannotDescribe(
            f"{', '.join(beyond)}: larger than any model ({', '.join(f'{name} up to {most:,}' for name, most in MOST.items())})"
        )


def _refuse_other_size(row: LlmRow, values: Mapping[str, Any]) -> None:
    """Raise CannotDescribe if the shape *values* of the model's name is not of the size in that name.

    The size of a mixture may be that of all parameters or of those that a token uses.
    """
    stated = _SIZE.search(row.text["model"].lower())
    if stated is None or count(row, "hidden") or count(row, "layers") or _LAYERS_IN_NAME.search(row.text["model"]):
        return
    size = float(stated.group(1)) * _SCALES[stated.group(2)]
    used = {"experts": values["experts_per_token"]} if values.get("experts") else {}
    fields = {"activation": "swiglu", **values, "max_seq": values.get("max_seq") or 1}
    totals = [parameter_count(Transformer(**fields)), parameter_count(Transformer(**(fields | used)))]
    if min(abs(math.log(parameters / size)) for parameters in totals) > math.log(OTHER_SIZE):
        raise CannotDescribe(
            f"{row.text['model']!r}: the model known by this name has {totals[0] / 1e9:.1f} billion parameters; fill in layers, hidden, "
            "heads, ffn_hidden and vocab"
        )


def _heads(row: LlmRow, hidden: int, assumed: list[str]) -> int:
    """Return the number of heads of about 128 elements that the tensor-parallel group can divide."""
    tensor = axis(row, "tp")
    fitting = [heads for heads in range(tensor, hidden // 32 + 1, tensor) if hidden % heads == 0]
    if not fitting:
        raise CannotDescribe(f"heads is blank, and no number of heads divides hidden {hidden} over tp {tensor}")
    assumed.append("heads of about 128 elements")
    return min(fitting, key=lambda heads: abs(math.log(hidden / heads / 128)))


def _sizes(row: LlmRow, assumed: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the family and the sizes of the model of *row*: those of its name, overridden by those of its columns."""
    named = dict(_family_entry(row.text["model"]))
    if not (count(row, "hidden") or named.get("hidden")):  # there is only the name
        named = {**_cataloged(row.text["model"]), **named}
    family = named.pop("family", "dense")
    sizes = {key: int(row.number[column]) for column, key in SHAPE_COLUMNS.items() if row.number.get(column, 0) > 0}
    sizes |= experts_in_words(row) | _layers_in_name(row, named)
    if sizes.get("experts", 2) == 1 or not (sizes.get("experts") or named.get("experts")):  # how some tables write dense models
        sizes = {key: size for key, size in sizes.items() if key not in ("experts", "experts_per_token")}
    experts = sizes.get("experts") or named.get("experts")
    if experts and not (sizes.get("experts_per_token") or named.get("experts_per_token")):
        raise CannotDescribe(f"topk is blank: how many of the {experts} experts a token uses is unknown")
    if experts and "ffn" in sizes and sizes["ffn"] < 4 * sizes.get("hidden", named.get("hidden", 0)) and "mla" not in named:
        sizes["expert_ffn"] = sizes.pop("ffn")
    if "mla" in named:
        sizes.pop("kv_heads", None)
    elif named.get("hidden") not in (None, sizes.get("hidden", named.get("hidden"))):
        named.pop("head_dim", None)
    if sizes.get("layers", 0) * named.get("block_letters", 0) == named.get("layers"):  # layers of the model's code, of several letters
        sizes.pop("layers", None)
    values = {**named, **sizes}
    assumed += [
        f"{size} {values[size]:,}, by the model's name; the row says {row.non_numeric[column]!r}"
        for column, size in SHAPE_COLUMNS.items()
        if column in row.non_numeric and size in named and size not in sizes
    ]
    assumed += _unlike_its_name(row, values)
    if "layers" not in values and "hidden" in values:
        values["layers"] = _layers(row, values, assumed)
    if values.get("hidden") and not values.get("heads"):
        values["heads"] = _heads(row, int(values["hidden"]), assumed)
    return family, values


def _unlike_its_name(row: LlmRow, values: Mapping[str, Any]) -> list[str]:
    """Return notes on sizes in the columns of *row* that the catalog's model of its name does not have."""
    of_name = _cataloged(row.text["model"])
    compared = {column: size for column, size in SHAPE_COLUMNS.items() if column in row.number and size in ("layers", "hidden", "ffn")}
    differing = {column: (values[size], of_name[size]) for column, size in compared.items() if size in values and of_name.get(size)}
    return [
        f"{column} {stated:,.0f} as in the row; {row.text['model']} has {usual:,}"
        for column, (stated, usual) in differing.items()
        if stated != usual
    ]


def experts_in_words(row: LlmRow) -> dict[str, int]:
    """Return the numbers of experts in cells such as ``64 + 2 shared``, ``1+256`` (more are routed than shared) and ``top-8``."""
    cell = row.non_numeric.get("experts", "")
    experts = _SHARED.fullmatch(cell) or _SUM.fullmatch(cell)
    shared, routed = sorted(map(int, experts.groups())) if experts else (0, 0)
    chosen = _CHOSEN.fullmatch(row.non_numeric.get("topk", ""))
    return {
        **({"experts": routed, "shared_experts": shared} if experts else {}),
        **({"experts_per_token": int(chosen.group(1) or chosen.group(2))} if chosen else {}),
    }


def _layers_in_name(row: LlmRow, named: Mapping[str, Any]) -> dict[str, int]:
    """Return the layers in a name such as ``DeepSeek V3 (4 layers)``, if their column is blank. Raise CannotDescribe for other proxies."""
    if count(row, "layers") or "layers" not in named:
        return {}
    stated = _LAYERS_IN_NAME.search(row.text["model"])
    if stated is None and _PROXY.search(row.text["model"]):
        raise CannotDescribe(f"{row.text['model']!r} is a proxy, which has fewer layers; write their number into the column layers")
    return {"layers": int(stated.group(1))} if stated else {}


def _layers(row: LlmRow, values: Mapping[str, Any], assumed: list[str]) -> int:
    """Return the number of layers that gives the size in the model's name, as a multiple of the stages."""
    size = re.search(r"(\d+(?:\.\d+)?)\s*b", row.text["model"], re.IGNORECASE)
    if not size:
        raise CannotDescribe("layers is blank, and the model's name contains no size")
    hidden = int(values["hidden"])
    blocks = (float(size.group(1)) * 1e9 - hidden * float(values.get("vocab", 0))) / (12.0 * hidden**2)
    stages = axis(row, "pp")
    assumed.append("layers, from the size in the model's name")
    return max(stages, round(blocks / stages) * stages)
