"""What may somebody type? Commands that exist, with options that exist or do not, and values that are seldom meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from sim.spec.fields import Spec
from sim.spec.library import load_hardware, load_workload
from sim.spec.sections import file_values
from sim.spec.yaml import spell_key

VALUES = (
    "", " ", "0", "1", "2", "8", "-1", "1e9", "nan", "inf", "1..4", "4..1", "1..", "1..1000000", "1..4:0", "1..4:log2", "x",
    "H100", "p3.8xlarge",
    "alexnet", "vgg", "fp16", "amp_bf16", "spot", "gpus=8", "gpus>x", "node.nic.bandwidth=25 Gbps", "node.gpu.compute_capability=abc",
    "node.gpu.tensor_core_rate=0", "training.batch=-3", "a=b", "=", "10 USD/h", "1 GiB", "1MiB..1GiB:2000000", "1B..1KiB",
    "torch-1.13-ddp", "1+2",
    "{folder}", "{folder}/empty.yaml", "{folder}/absent.yaml", "{folder}/job.yaml", "{folder}/out.csv", "{folder}/out.html",
    "\u2028", "..", "/", "--",
    "9" * 50, "\ud800", "dask://localhost:1", "batch=8,16", "batch=1..10000000000", "node.nic.bandwidth=1..9 Gbps:3", "20h",
)  # fmt: skip
OPTIONS = (
    "--nodes", "--gpus", "--batch", "--global-batch", "--precision", "--stack", "--placement", "--set", "--seed", "--json",
    "--csv", "-o", "--html",
    "--trace", "--market", "--epochs", "--hours", "--evaluation", "--no-checkpoints", "--exact", "--fast", "-v", "--where",
    "--vary", "--sobol", "--jobs",
    "--cluster", "--force", "--policy", "--workers", "--bytes", "--op", "--hardware", "--layers", "--budget-usd", "--budget-hours",
    "--on-demand",
    "--mean-lifetime", "--help", "--quiet", "--version", "--absent", "--topo", "--from", "--input", "--arg", "--chakra", "--comm-groups",
)  # fmt: skip
COMMANDS = (
    ("run", "p3.2xlarge", "alexnet", "--fast"), ("list", "hardware"), ("list", "workloads"), ("show", "alexnet"),
    ("check", "alexnet"), ("schema",),
    ("new", "hardware"), ("collective", "p3.8xlarge", "--op", "all_reduce", "--bytes", "1MiB"), ("diff",),
    ("compare", "alexnet", "p3.2xlarge"),
    ("recommend", "alexnet", "p3.2xlarge"), ("spot", "p3.2xlarge", "alexnet"), ("sweep", "p3.2xlarge", "alexnet"),
    ("extract", "a:b"), ("share",),
    ("whatif", "p3.2xlarge", "alexnet"), ("run",), ("runn",), (), ("study",), ("calibrate",), ("profile", "p3.2xlarge", "alexnet"),
)  # fmt: skip
ODD_VALUES = (
    "0", "1", "-1", "0.5", "1e-9", "1e9", "nan", "abc", "", "null", "[]", "{}", "true", "0 s", "1 us", "1 d", "1 B", "1 PB",
    "1 Mbps", "1 Pbps", "0%",
    "1 FLOP/s", "100 PFLOP/s", "-3.5", "99.9", "0.0", "1000000", "v100-sxm2-16gb", "[1, 2]", "{fp32: 1 TFLOP/s}",
)  # fmt: skip
"""Values of a field that its type may or may not take."""


@cache
def _keys() -> Sequence[str]:
    """Return the dotted key of every value of two machines and two workloads, defaults included."""
    keys = set()
    for loaded in (load_hardware("p3.8xlarge"), load_hardware("dgx-a100"), load_workload("alexnet"), load_workload("gpt2")):
        keys |= {spell_key(key, loaded.document.implied) for key in _leaves(loaded.spec) if "source" not in key}
    return sorted(keys)


def _leaves(value: Any, key: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    value = file_values(value) if isinstance(value, Spec) else value
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list | tuple) else None
    if inside is None:
        yield key
    for name, held in inside or ():
        yield from _leaves(held, (*key, name))


def command_line(random: Random, folder: Path) -> list[str]:
    """Return a command line, whose files are in *folder*."""
    if random.random() < 0.3:
        key, value = random.choice(_keys()), random.choice(ODD_VALUES)
        return ["run", *random.choice((("p3.8xlarge", "alexnet"), ("dgx-a100", "gpt2"))), "--fast", "--set", f"{key}={value}"]
    words = list(random.choice(COMMANDS))
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        words.append(random.choice(VALUES) if random.random() < 0.3 else random.choice(OPTIONS))
        if words[-1].startswith("-") and random.random() < 0.8:
            words.append(random.choice(VALUES))
    if words and random.random() < 0.1:
        words[random.randrange(len(words))] = random.choice(VALUES)
    return [word.replace("{folder}", str(folder)) for word in words]
