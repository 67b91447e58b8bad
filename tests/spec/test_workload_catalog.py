"""The catalog's workloads, models, datasets and stacks: complete, consistent, and equal to counts made elsewhere; no torch needed."""

from __future__ import annotations

import csv

import pytest

from sim.extract import table
from sim.spec.catalog import all_files
from sim.spec.input import Dataset
from sim.spec.library import catalog, load_part, load_workload
from sim.spec.model import Model
from sim.spec.stack import Ddp, Stack
from sim.spec.yaml import SpecError
from tests.extract.tables import traced_models
from tests.for_each import for_each
from tests.spec.test_transformer import DECODERS as DECODERS_CSV

MODELS = catalog("workloads/models")
WORKLOADS = catalog("workloads")
DECODERS = set(MODELS) - set(traced_models())
"""Models that are described by their shape; the others are tables that ``sim extract`` wrote."""

STASH = {
    # parameters, gradient tensors, largest tensor: counted from the definitions in aakash-sharma/DS-Analyzer, where Stash's runs
    # made one all-reduce for each tensor; totals equal torchvision's published ones
    "alexnet": (61100840, 16, 37748736),
    "squeezenet1_0": (1248424, 52, 512000),
    "shufflenet_v2_x0_5": (1366792, 170, 1024000),
    "mobilenet_v2": (3504872, 158, 1280000),
    "resnet18": (11689512, 62, 2359296),
    "resnet50": (25557032, 161, 2359296),
    "vgg11": (132863336, 22, 102760448),
    "bert-large-seq384": (334094338, 391, 31254528),
    "resnet10": (5418792, 38, 2359296),
    "resnet12": (10139432, 44, 2359296),
    "resnet16": (11615528, 56, 2359296),
    "resnet34": (21797672, 110, 2359296),
    "resnet101": (44549160, 314, 2359296),
    "resnet152": (60192808, 467, 2359296),
    "vgg13": (133047848, 26, 102760448),
    "vgg16": (138357544, 32, 102760448),
    "vgg19": (143667240, 38, 102760448),
    "resnet10_nobn": (5414824, 20, 2359296),
    "resnet12_nobn": (10133416, 22, 2359296),
    "resnet16_nobn": (11607976, 26, 2359296),
    "resnet18_nobn": (11681704, 28, 2359296),
    "resnet34_nobn": (21782440, 44, 2359296),
    "resnet50_nobn": (25556904, 159, 2359296),
    "resnet101_nobn": (44549032, 312, 2359296),
    "resnet152_nobn": (60192680, 465, 2359296),
}

NO_RESIDUE = {"resnet10": (38, 5418792), "resnet12": (44, 10139432), "resnet16": (56, 11615528), "resnet18": (62, 11689512)}

PUBLISHED = {
    # parameters in torchvision's documentation of pretrained weights (with auxiliary classifiers: its definitions), and BERT's
    # (huggingface/transformers, BertForQuestionAnswering and BertForPreTraining of the base configuration)
    "densenet161": 28681000,
    "vit_b_16": 86567656,
    "inception_v3": 27161264,
    "googlenet": 13004888,
    "bert-base-seq384": 108893186,
    "bert-base-seq128": 110106428,
    # roberta-base on the hub (its tensors); T5 and Inception v4: presets of keras-hub
    "roberta-base-seq128": 124697433,
    "roberta-base-seq512": 124697433,
    "t5-small": 60506624,
    "t5-base": 222903552,
    "inception_v4": 42679816,
    # torchvision's documentation of pretrained weights
    "densenet121": 7978856,
    "mobilenet_v3_large": 5483032,
    "efficientnet_b0": 5288548,
    "efficientnet_b4": 19341616,
    "resnext50_32x4d": 25028904,
    "resnext101_32x8d": 88791336,
    # huggingface/transformers: GPT2LMHeadModel and LlamaForCausalLM of the released configurations
    "gpt2": 124439808,
    "gpt2-medium": 354823168,
    "gpt2-large": 774030080,
    "gpt2-xl": 1557611200,
    "llama-7b": 6738415616,
}

APPROXIMATE = {
    # millions of parameters as their authors round them: kuangliu/pytorch-cifar 11.17 (44.7 MB), YOLOv3 61.6 (the Pollux tables),
    # fairseq's big Transformer 210, NVIDIA's GNMT v2 160 and Transformer-XL base 192, NeuMF on MovieLens 1M 1.60, DeepSpeech2 of
    # five GRUs of width 800 about 41, DLRM on Criteo Kaggle 540, U-Net 31.03 (zhixuhao/unet: 31,030,593 with one class, 65 less),
    # RoBERTa large 355 (Liu et al., arXiv 1907.11692, table 9), T5 large 770 with the encoder-decoder of its paper, 738 as released
    "cifar10-resnet18": 11.17,
    "yolov3": 61.6,
    "transformer-big": 210,
    "gnmt": 160,
    "transformer-xl-base": 192,
    "ncf": 1.60,
    "deepspeech2": 41,
    "dlrm-criteo": 540,
    "unet": 31.03,
    "t5-large": 738,
    "roberta-large-seq512": 355,
}


LOW_PRECISION = {
    **dict.fromkeys(["gnmt", "transformer-big", "transformer-xl-base", "transformer-xl-large", "yolov3"], "amp_fp16"),
    **dict.fromkeys(["bert-large-seq128", "bert-large-seq512"], "amp_fp16"),
    "llama-7b": "bf16",
}
LARGER = {"llama-7b": 80}
GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")


def model(name: str) -> Model:
    return load_part(Model, name)


def tensors(layer_table: Model) -> list[int]:
    return [elements for layer in layer_table.layers for elements in layer.gradients]


@for_each(STASH)
def test_gradient_tensors_are_those_that_stash_exchanged(name: str) -> None:
    parameters, count, largest = STASH[name]
    sizes = tensors(model(name))
    assert (model(name).parameters, sum(sizes), len(sizes), max(sizes)) == (parameters, parameters, count, largest)


@pytest.mark.parametrize("depth", NO_RESIDUE)
def test_down_sampling_without_residuals_gets_no_gradient(depth: str) -> None:
    """Stash's code still computes the three down-sampled inputs and drops them: convolution and norm of each get no gradient.

    64 x 128, 128 x 256 and 256 x 512 weights and two vectors of the output channels.
    """
    count, parameters = NO_RESIDUE[depth]
    layer_table = model(f"{depth}_noresidue")
    dropped = sum(64 * 2**i * 128 * 2**i + 2 * 128 * 2**i for i in range(3))
    assert (layer_table.parameters, len(tensors(layer_table)), sum(tensors(layer_table))) == (parameters, count - 9, parameters - dropped)


@for_each(PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    layer_table = model(name)
    assert layer_table.parameters == PUBLISHED[name] == sum(tensors(layer_table))


@for_each(APPROXIMATE)
def test_parameters_are_about_the_published_ones(name: str) -> None:
    layer_table = model(name)
    assert layer_table.parameters == sum(tensors(layer_table)) == pytest.approx(APPROXIMATE[name] * 1e6, rel=0.006)


@pytest.mark.parametrize(("layers", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_parameters_of_resnets_for_cifar_by_hand(layers: int, millions: float) -> None:
    """He et al., arXiv 1512.03385, section 4.2 and table 6: 2n convolutions a stage, each with a norm, and shortcuts without parameters."""
    n = (layers - 2) // 6
    convolutions = 9 * (3 * 16 + 2 * n * 16**2 + 16 * 32 + (2 * n - 1) * 32**2 + 32 * 64 + (2 * n - 1) * 64**2)
    parameters = convolutions + 2 * (16 + 2 * n * (16 + 32 + 64)) + 64 * 10 + 10
    assert model(f"cifar10-resnet{layers}").parameters == parameters
    assert round(parameters / 1e6, 1 if millions > 1 else 2) == millions


def test_forward_flop_of_vgg16_by_hand() -> None:
    """13 convolutions of 3x3 at 224, 112, 56, 28 and 14 pixels, and three matrices; 2 FLOP for each product."""
    channels = [(224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (56, 256, 256)]
    channels += [(28, 256, 512), (28, 512, 512), (28, 512, 512), (14, 512, 512), (14, 512, 512), (14, 512, 512)]
    convolutions = sum(2 * size * size * 9 * before * after for size, before, after in channels)
    matrices = 2 * (25088 * 4096 + 4096 * 4096 + 4096 * 1000)
    assert sum(layer.forward for layer in model("vgg16").layers) == convolutions + matrices == 30_940_528_640


def test_forward_flop_of_bert_large_by_hand() -> None:
    """24 layers of 12 width^2 weights for each of 384 tokens, two score products of 384 x 384 x width, and two output columns."""
    width, tokens = 1024, 384
    products = 24 * (12 * width * width * tokens + 2 * tokens * tokens * width) + 2 * width * tokens
    assert sum(layer.forward for layer in model("bert-large-seq384").layers) == 2 * products


@for_each(sorted(MODELS.keys() - DECODERS))
def test_model(name: str) -> None:
    """Every table: reads back to the same bytes, says its command, backward is twice forward but for the first layer and dead ends."""
    layer_table, path = model(name), MODELS[name]
    assert layer_table.name == name
    assert table.render(layer_table) == path.read_text(encoding="utf-8")
    assert f"# Written by: {layer_table.command}\n" in path.read_text(encoding="utf-8")
    assert layer_table.command.startswith("python -m sim extract ") and layer_table.command.endswith(f"-o workloads/models/{name}.yaml")
    products = [layer for layer in layer_table.layers if layer.forward]
    feedforward = [layer for layer in products if layer.op != "rnn"]
    assert all(layer.backward in (0, layer.forward, 2 * layer.forward, 2.5 * layer.forward) for layer in feedforward)
    assert all(1.9 < layer.backward / layer.forward < 2 for layer in products if layer.op == "rnn")  # the initial state has no gradient
    assert all(layer.backward or "downsample" in layer.name for layer in products)
    assert all(layer.channels for layer in products if layer.op != "attention")
    assert sum(layer.saved for layer in layer_table.layers) > 0
    assert len({layer.name for layer in layer_table.layers}) == len(layer_table.layers)


@for_each(sorted(WORKLOADS.keys() - DECODERS))
def test_workload(name: str) -> None:
    """Every workload resolves, states who chose its batch, has samples that fit its model, and fits a GPU of 16 GB, or the one it
    names."""
    workload = load_workload(name).spec
    assert (workload.name, workload.model.name) == (name, name)
    assert workload.description and workload.training.source != "the user's choice"
    assert workload.dataset.prepared == workload.model.input
    assert workload.training.stack.name == "torch-1.13-ddp" and workload.training.precision in ("fp32", LOW_PRECISION.get(name))
    width = 2 if workload.training.precision == "bf16" else 4
    states = width * workload.model.parameters * (2 + workload.training.optimizer.states)  # weights, gradients, optimizer
    half = 1 if workload.training.precision == "fp32" else 2
    activations = workload.training.batch * sum(layer.saved for layer in workload.model.layers) / half
    assert states + activations < 1e9 * (LARGER.get(name, 16) - 1)  # less the context


def test_decoders() -> None:
    """Every decoder resolves with the defaults, says where its sizes and its sequence come from, and counts as its first line says."""
    wrong = []
    for name in sorted(DECODERS):
        workload, text = load_workload(name).spec, MODELS[name].read_text(encoding="utf-8")
        model, training = workload.model, workload.training
        dataset = "openwebtext-seq1024" if name in GPT2 else "tokens"
        named = (workload.name, model.name, workload.dataset.name, training.stack.name) == (name, name, dataset, "torch-2.x-ddp")
        cut = model.sequence is not None and workload.dataset.prepared == model.input == 16 * model.sequence
        counted = f": {model.parameters:,} parameters." in text.splitlines()[0]
        sourced = isinstance(model.source, dict) and {"*", "sequence"} <= model.source.keys() and bool(workload.description)
        if not (named and cut and counted and sourced):
            wrong.append((name, named, cut, counted, sourced))
    assert not wrong
    names = "gpt3-175b bloom opt-175b mpt-30b llama-2-70b llama-3.1-8b llama-3.1-70b llama-3.1-405b llama-4-maverick-17b-128e"
    names += " mixtral-8x7b qwen2.5-72b qwen3-235b-a22b deepseek-v3 gpt-oss-120b gemma-3-27b-pt phi-4 nemotron-4-340b nanotron-80b"
    assert set(names.split()) <= DECODERS


def test_every_model_has_a_workload_and_stashs_names_resolve() -> None:
    assert set(MODELS) == set(WORKLOADS)
    for alias, name in {
        "noBN_resnet18": "resnet18_nobn",
        "noResidue_resnet34": "resnet34_noresidue",
        "bert-large": "bert-large-seq384",
    }.items():
        assert load_workload(alias).spec.name == name
    with pytest.raises(SpecError, match="resnet51"):
        load_workload("resnet51")


@for_each(catalog("workloads/datasets"))
def test_dataset(name: str) -> None:
    """Every number of a dataset has its source."""
    dataset_part = load_part(Dataset, name)
    assert dataset_part.name == name and isinstance(dataset_part.source, dict)
    numbers = {"samples", "sample", "prepared", "prep", "dali_prep", "dali_gpu_prep", "dali_gpu_time"} & dataset_part.model_fields_set
    assert numbers <= dataset_part.source.keys()


@for_each(all_files("workloads/stacks"))
def test_stack(name: str) -> None:
    """Every stack resolves under its own name, with a source for each factor that is not the default of the schema."""
    stack_part = load_part(Stack, name)
    assert stack_part.name == name and isinstance(stack_part.source, dict) and "*" in stack_part.source
    assert {"launch_cpu", "gradient_copy_passes", "optimizer"} <= stack_part.source.keys()


def test_stacks_differ_as_the_software_does() -> None:
    """DDP: 25 MiB buckets, the first 1 MiB, overlapped. Stash: every tensor alone, three blocking scalars, no buffer broadcast."""
    stacks = {name: load_part(Stack, name) for name in all_files("workloads/stacks")}
    torch = stacks["torch-1.13-ddp"]
    ddp, stash, flat = torch.exchange, stacks["apex-per-tensor"].exchange, stacks["flat"].exchange
    assert isinstance(ddp, Ddp)
    assert (ddp.bucket_cap, ddp.first_bucket_cap, ddp.overlap, ddp.broadcast_buffers) == (25 * 2**20, 2**20, True, True)
    assert (stash.strategy, stash.blocking_scalar_all_reduces, stash.broadcast_buffers) == ("apex_per_tensor", 3, False)
    assert (flat.strategy, flat.overlap) == ("flat", False)
    assert (stacks["torch-1.6-ddp"].kernels.fp32_convolution, torch.kernels.fp32_convolution, torch.kernels.fp32_matmul) == (
        "fp32",
        "tf32",
        "fp32",
    )


def test_prep_cost_of_imagenet_is_the_measured_one() -> None:
    """DLPerf: 8 DataLoader workers deliver 1,070 images/s, 8 DALI threads 2,244 (Oneflow-Inc/DLPerf PyTorch/resnet50v1.5)."""
    imagenet = load_part(Dataset, "imagenet-1k")
    assert imagenet.prep == pytest.approx(8 / 1070, rel=2e-3)
    assert imagenet.dali_prep == pytest.approx(8 / 2244, rel=2e-3)


def test_the_families_that_stash_and_the_measured_tables_use_are_there() -> None:
    """At least 30 models, by family, each with a workload."""
    families = {
        "resnet": ["10", "12", "16", "18", "34", "50", "101", "152"],
        "vgg": ["11", "13", "16", "19"],
        "bert-": ["base-seq128", "base-seq384", "base-seq512", "large-seq128", "large-seq384", "large-seq512"],
        "gpt2": ["", "-medium", "-large", "-xl"],
        "efficientnet_": ["b0", "b4"],
        "": ["alexnet", "inception_v3", "googlenet", "densenet161", "mobilenet_v2", "mobilenet_v3_large", "squeezenet1_0", "vit_b_16"],
        "shufflenet": ["_v2_x0_5"],
    }
    named = {family + size for family, sizes in families.items() for size in sizes}
    named |= {f"resnet{depth}_nobn" for depth in (10, 12, 16, 18, 34, 50, 101, 152)} | {
        f"{depth}_noresidue" for depth in (*NO_RESIDUE, "resnet34")
    }
    named |= {
        "llama-7b",
        "transformer-big",
        "gnmt",
        "ssd300",
        "dlrm-criteo",
        "ncf",
        "deepspeech2",
        "cifar10-resnet18",
        "resnet34_noresidue",
    }
    assert named <= set(WORKLOADS) and len(named) >= 30


NAMED = {
    "mixtral-8x7b": "mixtral-8x7b-v0.1", "mixtral-8x22b": "mixtral-8x22b-v0.1", "bloom-1b7": "bloom-1.7b", "bloom-7b1": "bloom-7.1b",
    "deepseek-v2": "deepseek-v2-236b", "deepseek-v2-lite": "deepseek-v2-lite-16b", "bloom": "bloom-176b",
    "phi-3-mini-4k": "phi-3-mini-4k-instruct", "llama-3.1-8b": "llama-3-8b", "llama-3.1-70b": "llama-3-70b",
    "bloom-1b1": "bloom-1.1b",
    **{f"gpt3-{size}": f"gpt-3-{size}" for size in ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b")},
    "nemotron-3-8b": "nemotron-3-8b (2023)", "nemotron-3-22b": "nemotron-3-22b (2023)",
}  # fmt: skip
"""Names of the table of published decoders, where they are others than the hub's in lower case."""


def test_decoders_have_the_published_parameters() -> None:
    """Oracle: totals of tests/spec/decoders.csv, by the model's own name; the head is tied where the release ties it."""
    rows = {row["name"].lower().removesuffix("-hf"): row for row in csv.DictReader(DECODERS_CSV.read_text(encoding="utf-8").splitlines())}
    compared, wrong = 0, []
    for name in DECODERS:
        row, entry = rows.get(NAMED.get(name, name)), model(name)
        if row is None:
            continue
        compared += 1
        assert entry.transformer is not None
        if abs(entry.parameters / int(row["parameters_total"]) - 1) > 1e-4 or entry.transformer.tied != (row["tied_embeddings"] == "true"):
            wrong.append((name, entry.parameters, row["parameters_total"]))
    assert not wrong
    assert compared >= 70


@pytest.mark.parametrize(
    ("hub_name", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("google/gemma-3-4b-it", "gemma-3-4b-pt"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1"),
        ("gemma-2-9b-it", "gemma-2-9b"),
        ("llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("deepseek-v3-base", "deepseek-v3"),
        ("qwen3-4b-base", "qwen3-4b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b"),
    ],
)
def test_names_of_the_hub_resolve(hub_name: str, name: str) -> None:
    """Oracle: the releases under these names have the sizes of the catalog's model."""
    assert load_workload(hub_name).spec.name == name


def test_other_names_with_an_owner_are_paths() -> None:
    for hub_name in ("meta-llama/Llama-9-8B", "./llama-3.1-8b", "mine/llama-3.1-8b.yaml", "a/b/llama-3.1-8b"):
        with pytest.raises(SpecError, match="no such file"):
            load_workload(hub_name)
    with pytest.raises(SpecError, match="did you mean"):
        load_workload("resnet50-it-works")
