"""Oracles: the names and aliases of the catalog's parts, what drivers and data sheets call GPUs, and batches of published rows."""

from __future__ import annotations

import pytest

from calibration.gpu_names import aliases_by_part, catalog_gpus, count_of, without_count
from calibration.llm.chips import chip_named, normalize_name


def test_each_gpu_is_meant_by_its_own_names() -> None:
    """Those of another maker's words, counts and cases as well."""
    unlike = {
        spelled: meant
        for part, aliases in aliases_by_part().items()
        for name in (part, *aliases)
        for spelled in (name, name.upper(), f"8x {name}", f"{name} x4", name.replace("-", " "), f"NVIDIA {name}")
        if (meant := catalog_gpus().meant(spelled)) != (part,)
    }
    assert not unlike


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Tesla V100-SXM3-32GB (450W)", "v100-sxm2-32gb"), ("H100_80GB_PCIe5", "h100-pcie-80gb"), ("NVIDIA H100 80GB HBM2e", "h100-pcie-80gb"),
     ("GB300 NVL72", "gb300-288gb"), ("HGX H100", "h100-sxm5-80gb"), ("a100-nvswitch", "a100-sxm4-80gb"), ("l40s-pcie", "l40s"),
     ("AMD Instinct MI355X OAM", "mi355x"), ("MI300X 192GB HBM3", "mi300x"), ("MI250X GCD", "mi250x-gcd"), ("A40 48G", "a40"),
     ("H100-SXM-96GB-HBM2e-500W", "h100-sxm5-96gb-hbm2e"), ("8 * H100-SXM", "h100-sxm5-80gb"), ("GeForce RTX 2080 Ti 11GB", "rtx2080ti"),
     ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"), ("Tesla K40m", "k40c"), ("RTX 5000", "quadrortx5000"), ("5000", None),
     ("RTX 5000 Ada", None), ("GeForce RTX 3090 Ti", "rtx3090ti"),
     ("RTX 6000", "quadrortx6000"), ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"), ("6000 Ada", "rtx6000ada"), ("6000", None),
     ("NVIDIA GH200 480GB", "gh200-96gb"), ("NVIDIA GH200 120GB", "gh200-96gb"), ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
     ("TITAN X", None), ("Titan X (Pascal)", "titanx-pascal"), ("80GB", None), ("DGX", None), ("A100 64GB", None), ("", None)],
)  # fmt: skip
def test_gpus_by_what_people_call_them(name: str, meant: str | None) -> None:
    """5000, 6000 and TITAN X are the names of two generations each; no A100 of the catalog has 64 GB."""
    assert next(iter(catalog_gpus().meant(name)), None) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [("A100 40G", "a100-sxm4-40gb"), ("A100_PCIe", "a100-pcie-40gb"), ("V100 PCIe", "v100-pcie-16gb"), ("P100", "p100-pcie-16gb"),
     ("H100 94GB", None), ("H100 96GB", None)],
)  # fmt: skip
def test_a_name_without_form_or_memory_means_the_same_gpu_in_every_table(name: str, meant: str | None) -> None:
    """The form of the number alone, and then the least memory.

    Lambda's batches on A100_PCIe are half of those on A100_80GB_PCIe. SXM boards of 94 and 96 GB exist as well as the NVL board.
    """
    assert next(iter(catalog_gpus().meant(name)), None) == meant
    chip = chip_named(name)
    assert (normalize_name(chip.chip.name) if chip else None) == (normalize_name(meant) if meant else None)


def test_the_number_of_gpus_is_read_before_and_after_their_name() -> None:
    """But not one of machines."""
    counts = {"8x V100": 8, "4xH100": 4, "H100 x8": 8, "H100 (x8)": 8, "2 * A40": 2, "16\u00d7A100": 16, "MI300X 192GB": None,
              "RTX 4090": None, "256x NVIDIA HGX H100": None, "8x NVIDIA GB200 NVL72": None}  # fmt: skip
    assert {name: count_of(name) for name in counts} == counts
    assert {without_count(name) for name in ("8x V100", "V100 x8", "V100 (x8)")} == {"V100"}
