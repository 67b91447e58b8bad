"""Oracle: what the inputs of well-known models hold."""

from __future__ import annotations

import pytest

from sim.extract.samples import dataset_like, tokens_of
from sim.spec.catalog import catalog
from sim.spec.library import load_workload
from sim.spec.model import Model


def table(workload: str) -> Model:
    return load_workload(workload).spec.model


@pytest.mark.parametrize(
    ("inputs", "dataset"),
    [
        (["3x224x224"], "imagenet-1k"),
        (["3x256x256", "t=scalar:int64"], "imagenet-1k"),  # a diffusion model with its time step
        (["image=3x224x224:uint8"], "imagenet-1k"),
        (["pixel_values=3x224x224", "input_ids=77:int64"], "imagenet-1k"),  # images with a caption
        (["input_ids=384:int64", "token_type_ids=384:int64"], "openwebtext-seq1024"),
        (["50xB:int64"], "openwebtext-seq1024"),
        (["80x3000"], "librispeech-960"),  # frames of a spectrum
        (["user=scalar:int64", "item=scalar:int64"], "criteo-kaggle"),
    ],
)
def test_the_largest_input_tells(inputs: list[str], dataset: str) -> None:
    assert dataset_like(inputs, table("alexnet")) == dataset
    assert dataset in catalog("workloads/datasets")


def test_layers_tell_where_no_shape_is_written() -> None:
    assert dataset_like([], table("resnet50")) == "imagenet-1k"
    assert dataset_like(["@my_file:example"], table("bert-large-seq384")) == "openwebtext-seq1024"


@pytest.mark.parametrize(
    ("inputs", "tokens"),
    [
        (["input_ids=384:int64", "token_type_ids=384:int64"], 384),
        (["50xB:int64"], 50),
        (["ids=512:int32", "mask=512x512:int64"], 512),
        (["source=512:int64", "target=114:int64"], 512),
        (["pixel_values=3x224x224", "input_ids=77:int64"], 77),
        (["3x256x256", "t=scalar:int64"], None),
        (["512x64"], None),
        (["@my_file:example"], 384),  # as its embedding looks up
    ],
)
def test_the_longest_row_of_integers_is_a_sample_of_tokens(inputs: list[str], tokens: int | None) -> None:
    assert tokens_of(inputs, table("bert-large-seq384")) == tokens
