"""Models that are no plain callable: exported programs, classes of transformers, checkpointed and sparse ones, the user's own inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sim.extract import extract
from sim.spec.decoder import decoder_layers
from sim.spec.layer import Layer
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.yaml import SpecError
from tests.extract.test_decoders import assert_same_model
from tests.late import torch

pytestmark = pytest.mark.needs("torch")


def exported(path: Path, dynamic: bool) -> Path:
    from tests.extract.nets import normed

    batch = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)} if dynamic else {}
    torch.export.save(torch.export.export(normed().train(), (torch.zeros(4, 3, 8, 8),), **batch), path)
    return path


def costs(layers: tuple[Layer, ...]) -> list[tuple[str, float, float, float, tuple[int, ...]]]:
    return [(layer.op, layer.forward, layer.backward, layer.saved, layer.gradients) for layer in layers if layer.op != "elementwise"]


def tensors(table: Model) -> list[int]:
    return sorted(size for layer in table.layers for size in layer.gradients)


def test_an_exported_program_costs_what_its_model_costs(tmp_path: Path, net: Callable[[str], str]) -> None:
    """Oracle: the same net traced from its own code."""
    program = extract(str(exported(tmp_path / "net.pt2", True)), [], "net")
    assert costs(program.layers) == costs(extract(net("normed"), ["3x8x8"], "net").layers)


def test_an_exported_program_needs_a_dynamic_batch(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"exported for a batch of 4 only.*dynamic_shapes=\{'input': \{0: torch.export.Dim\('batch'\)\}\}"):
        extract(str(exported(tmp_path / "net.pt2", False)), [], "net")


@pytest.mark.parametrize(("content", "message"), [(None, "no such file"), (b"text", "is not a program written by torch.export.save")])
def test_what_is_no_exported_program_is_told(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "net.pt2"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        extract(str(path), [], "net")


def test_checkpointed_parts_are_numbered_and_cost_what_they_cost_without(net: Callable[[str], str]) -> None:
    """Both of torch's ways to checkpoint; oracle: the same net that checkpoints nothing."""
    plain, *checkpointed = (extract(net("checkpointed"), ["6"], "net", {"way": way}) for way in ("none", "reentrant", "free"))
    for table in checkpointed:
        assert costs(table.layers) == costs(plain.layers)
        assert [layer.segment for layer in table.layers if layer.op == "gemm"] == [0, 1, 2, 0]


def test_frozen_and_sparse_parameters_are_noted(net: Callable[[str], str]) -> None:
    words, frozen, last = (layer for layer in extract(net("partly_frozen"), ["5:int64"], "net").layers if layer.op in ("embedding", "gemm"))
    assert (words.sparse, words.rows, words.rows_per_sample, words.gradients) == (True, 11, 5, (66,))
    assert (frozen.frozen, frozen.gradients) == ((36,), ())
    assert (last.frozen, last.gradients) == ((), (18,))


@pytest.mark.parametrize("tokens", [1024, 256])
def test_a_described_gpt2_is_that_of_transformers(tokens: int) -> None:
    """The class's defaults are the smallest GPT-2."""
    pytest.importorskip("transformers", reason="tests classes of transformers")
    traced = extract("transformers:GPT2LMHeadModel", [f"input_ids={tokens}:int64", f"labels={tokens}:int64"], "hf")
    shape = load_part(Model, "gpt2").transformer
    assert shape is not None
    assert_same_model(decoder_layers(shape, tokens), traced.layers)


@pytest.mark.parametrize(
    ("target", "inputs", "arguments", "name"),
    [
        ("LlamaForCausalLM", ["input_ids=2048:int64", "labels=2048:int64"], {}, "llama-7b"),
        ("BertForPreTraining", ["input_ids=128:int64", "attention_mask=128:int64", "token_type_ids=128:int64"], {}, None),
    ],
)
def test_classes_of_transformers(target: str, inputs: list[str], arguments: dict[str, int], name: str | None) -> None:
    """Oracle: our own definitions of the same models, whose output projection leaves out the last token of each sequence's loss alone."""
    pytest.importorskip("transformers", reason="tests classes of transformers")
    table = extract(f"transformers:{target}", inputs, "hf", arguments)
    assert any(layer.op == "attention" and layer.forward for layer in table.layers)
    ours = load_part(Model, name or "bert-base-seq128")
    assert table.parameters == ours.parameters
    if name:
        assert tensors(table) == tensors(ours)
        assert sum(layer.forward for layer in table.layers) == sum(layer.forward for layer in ours.layers)


def test_labels_alone_feed_an_encoder_decoder_of_transformers() -> None:
    """T5's decoder takes the labels moved by one (Raffel et al., JMLR 2020): the same tensors as with decoder inputs of that length."""
    pytest.importorskip("transformers", reason="tests classes of transformers")
    named = ("labels", "decoder_input_ids")
    given, shifted = (
        extract("transformers:T5ForConditionalGeneration", ["input_ids=16:int64", f"{name}=16:int64"], "t5", {"num_layers": 2})
        for name in named
    )
    assert given.parameters == shifted.parameters
    assert tensors(given) == tensors(shifted)


def test_missing_inputs_of_transformers_are_shown_by_tokens() -> None:
    with pytest.raises(SpecError, match="write, for example, --input input_ids=128:int64"):
        extract("transformers:BertModel", [], "hf")


def test_a_misspelled_setting_of_transformers_is_told() -> None:
    pytest.importorskip("transformers", reason="tests classes of transformers")
    with pytest.raises(SpecError, match="--arg n_layers: GPT2Config has no such field"):
        extract("transformers:GPT2LMHeadModel", ["input_ids=8:int64"], "hf", {"n_layers": 2})
