"""Which decoder does a Hugging Face ``config.json`` describe? Its fields, the defaults of its class, and the keys that are not read.

If the file has a key that changes the kind of layers and that its family does not read, the file is rejected, and the message lists the
families that read the key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sim.spec.catalog import catalog
from sim.spec.foreign.hf_defaults import DEFAULTS
from sim.spec.foreign.hf_encoders import ENCODERS, TRAINED
from sim.spec.foreign.hf_families import FAMILIES, MEANT, NAMES, NEEDED, shape_of
from sim.spec.foreign.hf_keys import Config, Shape, listed
from sim.spec.yaml import SpecError
from sim.units import any_of

_USUAL: Final[tuple[str, ...]] = ("llama", "qwen3_moe", "mixtral", "deepseek_v3")
"""Families on which many others are modeled, in the order in which messages list them."""


@dataclass(frozen=True)
class DecoderDescription:
    """A decoder: fields of a Transformer, and notes for the user on how its file was read."""

    shape: Shape
    notes: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Keys of the file by the field of a Transformer that each one sets."""


def decoder_of(config: Mapping[str, Any], place: str) -> DecoderDescription:
    """Return the decoder that a configuration describes; *place* is the name of its file in messages.

    Raise SpecError for an unknown family, for a size that is missing or not a number, and for layers that the family does not have.
    """
    block = next((name for name in _BLOCKS if isinstance(config.get(name), Mapping)), "")
    inside = config[block] if block else None
    if isinstance(inside, Mapping) and (kind := _family(config, f"{place}: ")) in _ENCODER_CLASSES:
        raise SpecError(f"{place}: {_unknown(kind, config)}")
    if isinstance(inside, Mapping):
        tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
        kind = _family(inside, f"{place}: {block}.") or f"{_family(config, f'{place}: ')}_text"
        return _described(kind, tied | dict(inside), place, config, block)
    return _described(_family(config, f"{place}: "), config, place, {}, "")


_BLOCKS: Final = ("text_config", "llm_config", "language_config")
"""Blocks with the decoder of a model with other inputs: of transformers, and of InternVL's and DeepSeek-VL2's own code."""


def _family(said: Mapping[str, Any], where: str) -> str:
    """Return the family that *said* names; empty if it names none. Raise SpecError, which begins with *where*, if it is not a name."""
    kind = said.get("model_type")
    if not isinstance(kind, str | None):
        raise SpecError(f"{where}model_type: {str(kind)[:20]} is not a name; write the family of the layers, such as llama")
    return kind or ""


def _described(kind: str, said: Mapping[str, Any], place: str, around: Mapping[str, Any], block: str) -> DecoderDescription:
    """Return the decoder of the family *kind* with the keys *said*: those of *block* in the keys *around* (empty: at the top level)."""
    if kind not in FAMILIES or (kind in ENCODERS and (trained := _class(said)) and not trained.endswith(TRAINED)):
        raise SpecError(f"{place}: {_unknown(kind, said)}")
    config = Config(said, place, DEFAULTS.get(kind, {}), f"{block}." if block else "")
    shape = shape_of(FAMILIES[kind], config)
    if strange := config.strange():
        raise SpecError(
            f"{place}: {config.within}{listed(strange)}: layers of {kind} do not support this, so the model would "
            f"differ{_advice(kind, said)}; or, if the keys have no effect, remove them from a copy of the file"
        )
    for name, size in config.assumed.items():
        if around.get(name, size) != size:
            raise SpecError(
                f"{place}: {name} ({around[name]}) is outside {block}, where the model ignores it (it uses {size}); move it into {block}"
            )
    notes = [
        f"{config.within.rstrip('.') or 'the file'} does not set {listed(config.assumed)}: used the defaults of {kind} in transformers"
    ]
    unread = config.unread()
    other_configs = [name for name in around if name.endswith("_config") and name != block and isinstance(around[name], Mapping)]
    towers = [f"only {block} is modeled: the model's {' and '.join(other_configs)}, and image or audio tokens, are left out"]
    unread_note = [f"ignored: {listed(unread)}"] if unread else []
    return DecoderDescription(
        shape,
        (
            *(notes if config.assumed else ()),
            *(towers if other_configs else ()),
            *unread_note,
            *config.notes,
            *_not_modeled({**around, **said}),
        ),
        config.keys_of(MEANT),
    )


def _not_modeled(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on keys of *said* that change the cost of training, but not the layers that transformers trains."""
    if predicted := _count(said, "num_nextn_predict_layers", 0):
        yield (
            f"num_nextn_predict_layers {predicted}: not trained here, as in transformers; for multi-token prediction, add "
            f"prediction_layers: {predicted} to model.transformer"
        )
    quantization = said.get("quantization_config")
    if isinstance(quantization, Mapping) and quantization:
        kind = next((name for name in ("load_in_4bit", "load_in_8bit") if quantization.get(name)), quantization.get("quant_method", ""))
        yield f"quantization_config {kind} is not modeled: weights have the bytes of training.precision".replace("  ", " ")


def _unknown(kind: str, said: Mapping[str, Any]) -> str:
    """Return the message that the family *kind* is unknown, and what to do about it."""
    unknown = "" if kind in FAMILIES else "unknown "
    which = f"{unknown}model_type {kind}" if kind else f"model_type, the family of the layers, is missing{_nearest(said)}"
    unread_by_all = set.intersection(*(set(_reading(name, said)[0].strange()) for name in FAMILIES))
    unread_text = (
        f"; no supported family has layers with {listed({name: said[name] for name in said if name in unread_by_all})}"
        if unread_by_all and not _unlike(kind) and kind not in _ENCODER_CLASSES
        else ""
    )
    return f"{which}{unread_text}{_advice(kind, said)}"


def _nearest(said: Mapping[str, Any]) -> str:
    """Return which families could have the keys *said*, and where all are listed."""
    similar = _similar_families("", said) if said else []
    could = f'; these keys fit {" and ".join(similar)}: add, for example, "model_type": "{similar[0]}"' if similar else ""
    return f"{could}; docs/how-to/my-model.md lists all {len(FAMILIES)} families"


def _advice(kind: str, said: Mapping[str, Any]) -> str:
    """Return advice on a configuration whose family *kind* is unknown or does not have such layers."""
    class_name = _class(said) or _ENCODER_DECODERS.get(kind, "") or _ENCODER_CLASSES.get(kind, "")
    traced = f"; or, with transformers installed, trace it: {_trace_command(class_name, said)}" if class_name else ""
    with_encoder = _attends_to_an_encoder(said)
    if with_encoder and not traced:
        inputs = "--input input_ids=512:int64 --input decoder_input_ids=512:int64"
        traced = f"; trace it instead, for example python -m sim new workload net.py:Net {inputs} -o {kind or 'mine'}.yaml"
    if with_encoder or (class_name and not class_name.endswith(_DECODERS)):
        alone = f"; the catalog has {', '.join(_of_family(kind))}" if _of_family(kind) else ""
        if not alone and (near := _of_family(_NEAREST.get(kind, ""))):
            alone = f"; the nearest of the catalog are {', '.join(near)}"
        why = ": an encoder-decoder is not simulated from its config.json" if with_encoder else ""
        if kind in ENCODERS:
            if class_name.endswith("Model"):
                trained = f'"architectures": ["{class_name.removesuffix("Model")}{TRAINED[0]}"]'
                return f": {class_name} has no head; with that for masked tokens, write {trained} in a copy of the file{traced}"
            return f": {class_name} has another head than that for masked tokens ({TRAINED[0]}), which alone is simulated{alone}{traced}"
        return f", and {class_name or 'its architecture'} is not a decoder{why}{alone}{traced}"
    if unlike := _unlike(kind):
        instead = traced or "; trace its torch model instead, for example python -m sim extract net.py:Net --input input_ids=2048:int64"
        return f": its layers have {unlike}, which is not modeled{instead}"
    similar = _similar_families(kind, said)
    similar_hint = (
        f"; if its layers are like those of {any_of(similar)}, set model_type to that in a copy of the file" if similar and kind else ""
    )
    fields = "layers: ..., hidden: ..., heads: ..., ffn: ..., vocab: ..."
    sizes = f"; or describe a decoder by its sizes: model: {{transformer: {{{fields}}}, sequence: ...}}" if kind else ""
    return f"{similar_hint}{traced}{sizes}; or run 'python -m sim new workload', which asks for them"


def _unlike(kind: str) -> str:
    """Return what layers of the family *kind*, also if written with hyphens or capitals, have that no Transformer has; empty if nothing."""
    return _UNLIKE.get(kind.lower().replace("-", "_").removesuffix("_text"), "")


def _of_family(kind: str) -> list[str]:
    """Return workloads of the catalog whose names begin with *kind*: one of each size, with the shortest sequences first."""
    names = [name for name in sorted(catalog("workloads")) if kind and re.match(rf"{re.escape(kind)}[-_]", name)]
    return list({re.sub(r"-seq\d+$", "", name): name for name in reversed(names)}.values())[::-1][:_NAMED]


_ENCODER_DECODERS: Final[Mapping[str, str]] = {
    **{kind: f"{name}ForConditionalGeneration" for kind, name in (
        ("t5", "T5"), ("mt5", "MT5"), ("umt5", "UMT5"), ("longt5", "LongT5"), ("switch_transformers", "SwitchTransformers"),
        ("bart", "Bart"), ("mbart", "MBart"), ("pegasus", "Pegasus"), ("m2m_100", "M2M100"), ("led", "LED"), ("whisper", "Whisper"),
    )},
    "marian": "MarianMTModel",
}  # fmt: skip
"""Families of encoders with decoders, and the class of transformers that trains each."""
_ENCODER_CLASSES: Final[Mapping[str, str]] = {
    **{kind: f"{name}ForMaskedLM" for kind, name in (
        ("bert", "Bert"), ("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"), ("deberta", "Deberta"), ("deberta-v2", "DebertaV2"),
        ("modernbert", "ModernBert"), ("distilbert", "DistilBert"), ("albert", "Albert"), ("mpnet", "MPNet"), ("esm", "Esm"),
    )},
    **{kind: f"{name}ForImageClassification" for kind, name in (
        ("vit", "ViT"), ("deit", "DeiT"), ("dinov2", "Dinov2"), ("swin", "Swin"), ("swinv2", "Swinv2"), ("beit", "Beit"),
    )},
    "electra": "ElectraForPreTraining", "clip": "CLIPModel", "siglip": "SiglipModel", "wav2vec2": "Wav2Vec2ForCTC",
}  # fmt: skip
"""Families of encoders, and the class of transformers that trains each."""
_NEAREST: Final[Mapping[str, str]] = {
    **dict.fromkeys(("xlm-roberta", "deberta", "deberta-v2"), "roberta"),
    **dict.fromkeys(("modernbert", "distilbert", "albert", "electra", "mpnet", "esm"), "bert"),
    **dict.fromkeys(("deit", "dinov2", "beit"), "vit"),
    **dict.fromkeys(("mt5", "umt5", "longt5"), "t5"),
}
"""Families of the catalog that are nearest in size and layers to others, which it does not have."""
_DECODERS: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of classes in transformers that generate text."""
_UNLIKE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("mamba", "falcon_mamba", "jamba"), "the selective scan of Mamba-1"),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1", "bailing_moe_linear"), "lightning (linear) attention"),
    **dict.fromkeys(("zamba", "zamba2"), "blocks of attention whose weights several layers share"),
    **dict.fromkeys(("csm", "moshi"), "a second decoder over the codebooks of audio"),
    "bitnet": "weights of 1.58 bits, and norms inside attention and feed-forward blocks",
    "blt": "bytes joined to patches of their own length",
    "diffllama": "differential attention",
    "doge": "attention with a dynamic mask",
    "gemma3n": "parallel streams (AltUp), embeddings of their own, and keys and values of other layers",
    "hunyuan": "keys and values of the layer before (cross-layer attention)",
    "jetmoe": "attention whose heads are experts",
    "kimi_linear": "Kimi delta attention, whose decay differs between the elements of a head",
    "mimo_v2_flash": "other numbers of key and value heads where attention has a window",
    "openelm": "sizes that differ from each other",
    "phi3small": "attention to blocks of tokens",
    "phi4flash": "the selective scan of Mamba-1, and keys and values of another layer",
    "plamo2": "a state space of its own kind",
    "recurrent_gemma": "linear recurrences (RG-LRU)",
    "rwkv": "linear attention with decay (WKV)",
    "solar": "connections over several layers",
    "step3": "factorized attention",
    "xlstm": "matrix memories (mLSTM)",
}
"""What the layers of further families have that no Transformer has, by what a vendor's ``modeling_*.py`` builds."""
_NAMED: Final = 3
"""Maximum number of the catalog's workloads in a message."""
_SIZE: Final = re.compile(
    r"(hidden|intermediate|embedding|vocab|image|patch|type_vocab)_size|num_(\w+_)?(layers|heads|channels|experts|experts_per_tok)|"
    r"\w+_(layers|heads|dim|positions|position_embeddings)|d_(model|ff|kv)"
)
"""Settings that determine the size of a model; other settings keep the defaults of its class."""


def _class(said: Mapping[str, Any]) -> str:
    """Return the class of transformers that the file names; empty if it names none."""
    names = said.get("architectures")
    first = names[0] if isinstance(names, list) and names else ""
    return first if isinstance(first, str) and first.isidentifier() else ""


def _attends_to_an_encoder(said: Mapping[str, Any]) -> bool:
    """Return whether the layers of a model with the keys *said* read the output of an encoder as well."""
    if said.get("is_encoder_decoder") or said.get("model_type") in _ENCODER_DECODERS:
        return True
    return not {"encoder_layers", "decoder_layers", "cross_attention_layers", "num_decoder_layers"}.isdisjoint(said)


def _count(said: Mapping[str, Any], name: str, default: int) -> int:
    """Return the number *name*, or *default* if the file has no such number above 0."""
    number = said.get(name)
    return number if type(number) is int and number > 0 else default


def _trace_command(class_name: str, said: Mapping[str, Any]) -> str:
    """Return the command that traces the class *class_name* with the sizes *said*."""
    side = said.get("image_size")
    if isinstance(side, int) and "vocab_size" not in said:
        shape = f"pixel_values={_count(said, 'num_channels', 3)}x{side}x{side}"
    else:
        shape = f"input_ids={min(512, _count(said, 'max_position_embeddings', 512))}:int64"
    if _attends_to_an_encoder(said):
        if "num_mel_bins" in said:
            shape = f"input_features={_count(said, 'num_mel_bins', 80)}x{2 * _count(said, 'max_source_positions', 1500)}"
        shape += f" --input decoder_input_ids={_count(said, 'max_target_positions', 512)}:int64"
    sizes = {name: size for name, size in said.items() if type(size) is int and _SIZE.fullmatch(name)}
    arguments = "".join(f" --arg {name}={size}" for name, size in sizes.items())
    return f"python -m sim extract transformers:{class_name} --input {shape}{arguments}"


def _similar_families(kind: str, said: Mapping[str, Any]) -> list[str]:
    """Return decoders' families that read all keys of *said* that affect layers: those with similar names, or else common ones."""
    fitting = [name for name in FAMILIES if name not in ENCODERS and _fits(name, said)]
    near = difflib.get_close_matches(kind.removesuffix("_text"), fitting, n=3, cutoff=0.7)
    return near or [name for name in _USUAL if name in fitting][:2] or fitting[:2]


def _fits(kind: str, said: Mapping[str, Any]) -> bool:
    """Return whether the family *kind* finds all keys that it needs in *said*, and reads all keys that affect layers."""
    config, complete = _reading(kind, said)
    return complete and not config.strange()


def _reading(kind: str, said: Mapping[str, Any]) -> tuple[Config, bool]:
    """Parse *said* as family *kind*; return the parsed configuration and whether all required keys were present.

    Sizes that every decoder has are filled in, because they do not distinguish families.
    """
    config = Config({NAMES[name][0]: 64 for name in NEEDED} | dict(said), "", {})
    try:
        shape_of(FAMILIES[kind], config)
    except SpecError:
        return config, False
    return config, True
