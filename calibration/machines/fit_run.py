"""What does one call of ``calibration fit`` do? Read records, fit, check the descriptions before writing them, show the results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from calibration.machines.gloo_fit import gloo_fits, gloo_processor
from calibration.machines.layer_factors import layer_fits, untraced_models
from calibration.machines.machine_blocks import describe_machine, undetermined_subjects
from calibration.machines.machine_fit import FACTOR, RATE, Fit, MergedRecords, fits, merge_records
from calibration.machines.machine_yaml import Block, Machine, Sources, device_block, gpu_named_by_driver, interval, with_layers
from calibration.machines.nccl_fit import NCCL, nccl_fit
from calibration.machines.posterior import PosteriorEstimate
from calibration.machines.predicted_steps import WrittenFiles
from calibration.machines.step_factors import FACTOR_FIELD, STEPS_SUBJECT, is_significant, step_fit, step_ratios, with_factor
from sim.check import check_hardware, require
from sim.spec.catalog import SearchFolders
from sim.spec.hardware import Gpu, Hardware
from sim.spec.library import load, load_hardware
from sim.spec.stack import Stack
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError
from sim.study.new.hardware import new_hardware


class FitResult(NamedTuple):
    """The results of a call of ``fit``."""

    records: MergedRecords
    fits: dict[str, Fit]
    machine: Machine
    step_ratios: Mapping[str, Sequence[float]]
    """Measured step times over the times of their layers, by model."""
    files: WrittenFiles
    left_out: Sequence[str]
    """Notes on measurements that the fit does not use, because their model cannot be traced here."""


def fit(paths: Sequence[Path], output: Path, hardware: str | None = None) -> FitResult:
    """Fit the records at *paths*, write the hardware to *output*, and write the software stack to the path that `stack_file` returns.

    Raise SpecError and leave all files unchanged if the records are insufficient or an output cannot be written.
    """
    if output.suffix not in (".yaml", ".yml"):
        raise SpecError(f"{output}: the name of the output file must end in .yaml")
    records = merge_records(paths)
    hardware = hardware or write_links(records, output)
    fitted = fits(records) | collective_fits(records, hardware)
    kernels = device_block(records, fitted)
    gpu = _gpu(kernels, output)
    fitted |= layer_fits(records, gpu, _described_kernels(records, fitted, gpu))
    device = with_layers(kernels, records, fitted, gpu.vector_factor)
    block, stack = describe_machine(records, fitted, device, output.stem, hardware, file_reference(hardware, output))
    changed = {"vector_factor": gpu.vector_factor} if kernels.get("vector_factor") != device.get("vector_factor") else {}
    untraced = untraced_models(records)
    machine = Machine(block, changed, stack, tuple(undetermined_subjects(records, fitted, untraced)))
    with drafts_of(output) as drafts:
        _write(machine, *drafts)
        ratios = step_ratios(records, _written(*drafts, machine))
        step_factor = step_fit(ratios)
        if step_factor is not None:
            fitted[STEPS_SUBJECT] = step_factor
        if step_factor is not None and stack is not None and is_significant(step_factor):
            sources = Sources(records)
            sources.fitted(
                FACTOR_FIELD, "steps", f"steps without exchange take {interval(step_factor[FACTOR], 1.0, 'times')} as long as their layers"
            )
            machine = replace(machine, stack=with_factor(stack, step_factor, sources.texts[FACTOR_FIELD]))
            _write(machine, *drafts)
        for draft, path in zip(drafts[::-1], (stack_file(output), output), strict=True):  # the hardware last: it matters most
            if draft.exists():
                write_file(path, draft.read_text(encoding="utf-8"))
    left_out = [f"{model}: the times of its layers are not used: {reason}" for model, reason in untraced.items()]
    return FitResult(records, fitted, machine, ratios, _written(output, stack_file(output), machine), left_out)


def _described_kernels(records: MergedRecords, fitted: Mapping[str, Fit], gpu: Gpu) -> set[str]:
    """Return the kernel classes that are described: all classes of a GPU in the catalog, else those that were measured."""
    if records.machine["gpus"] and gpu_named_by_driver(records.machine["gpus"][0]["name"]):
        return {*gpu.efficiency}
    return {kind for kind in ("conv", "gemm") if f"{kind} fp32" in fitted}


def write_links(records: MergedRecords, output: Path) -> str | None:
    """Write the links of several GPUs, as their driver printed them, to a file next to *output* and return its path.

    Return None if there are fewer than two GPUs or the driver printed no topology.
    """
    text = records.machine.get("topology", "")
    if len(records.machine["gpus"]) < 2 or not text:
        return None
    with tempfile.TemporaryDirectory() as folder:
        topo, path = Path(folder) / "topo.txt", output.with_name(f"{output.stem}-links.yaml")
        topo.write_text(text, encoding="utf-8")
        part = gpu_named_by_driver(records.machine["gpus"][0]["name"])
        new_hardware(topo, path, gpu=part.name if part else None, overwrite=True)
    return str(path)


def file_reference(hardware: str | None, output: Path) -> str:
    """Return the path of *hardware* relative to the folder of *output*; empty if *hardware* is not a file."""
    if hardware is None or not Path(hardware).is_file():
        return ""
    path = os.path.relpath(hardware, output.absolute().parent)
    return path if os.sep in path else f"./{path}"


def collective_fits(records: MergedRecords, hardware: str | None = None) -> dict[str, Fit]:
    """Return the fits of collectives; a fit of NCCL needs *hardware*, which describes the links."""
    candidates: list[Fit | None] = []
    if records.machine["backend"] == "gloo":
        candidates = [*gloo_fits(records), gloo_processor(records)]
    elif records.machine["backend"] == NCCL and hardware is not None:
        candidates = [nccl_fit(records, load_hardware(hardware).spec)]
    return {each.subject: each for each in candidates if each is not None}


def _gpu(block: Block, output: Path) -> Gpu:
    """Return the device that *block* describes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{output.stem}.yaml"
        path.write_text(yaml_text(block), encoding="utf-8")
        return load(Gpu, path).spec


def _written(hardware: Path, stack: Path, machine: Machine) -> WrittenFiles:
    """Return the files of a fit, with the overrides that undo the changes made by the measurements of whole layers."""
    overrides = tuple(f"node.gpu.{key}={value}" for key, value in machine.before_layers.items())
    return WrittenFiles(hardware, stack if machine.stack else None, overrides, {"elementwise_traffic": 1.0})


def stack_file(output: Path) -> Path:
    """Return the path of the software stack that belongs to the hardware at *output*."""
    return output.with_name(f"{output.stem}-stack.yaml")


def yaml_text(block: Mapping[str, Any]) -> str:
    """Return the YAML of *block*."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes lists on one line and uses no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True))
    return yaml.dump(dict(block), Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)


@contextmanager
def drafts_of(output: Path) -> Iterator[tuple[Path, Path]]:
    """Yield paths for drafts of hardware and stack and delete the drafts at the end.

    The drafts are in the folder of *output*, so that relative paths in ``extends`` resolve.
    """
    paths = tuple(path.with_name(f".{path.stem}.{os.getpid()}.part.yaml") for path in (output, stack_file(output)))
    try:
        yield paths[0], paths[1]
    except OSError as error:
        raise SpecError(f"{output}: cannot be written: {error.strerror}") from None
    finally:
        for path in paths:
            with suppress(OSError):
                path.unlink()


def _write(machine: Machine, hardware: Path, stack: Path) -> None:
    """Write *machine* to the drafts *hardware* and *stack*. Raise SpecError unless they load and the hardware passes all checks."""
    write_hardware(machine.hardware, hardware)
    if machine.stack is not None:
        stack.write_text(yaml_text(machine.stack), encoding="utf-8")
        load(Stack, stack)


def write_hardware(block: Mapping[str, Any], path: Path, library: SearchFolders = None) -> Hardware:
    """Write the hardware *block* to *path* and return it as loaded. Raise SpecError unless it loads and passes all checks."""
    path.write_text(yaml_text(block), encoding="utf-8")
    loaded = load_hardware(str(path.absolute()), library=library)
    require(check_hardware(loaded.spec, loaded.document))
    return loaded.spec


def fit_table(fitted: Mapping[str, Fit]) -> str:
    """Return a table with one line per parameter, with its interval."""
    lines = [f"{'':34} {'value':>12}   {'95% interval':27} {'points':>6} {'scatter':>8}"]
    for fit in fitted.values():
        for estimate in fit.posterior.estimates:
            value, low, high, unit = _shown(fit, estimate)
            interval_text = f"{low:11.4g} to {high:<11.4g}" if estimate.identified else "not identified: its prior    "
            name = f"{fit.subject}, {unit}"
            lines.append(f"{name:34} {value:12.4g}   {interval_text:27} {len(fit.times):6} {100 * fit.posterior.noise:6.1f}%")
    return "\n".join(lines)


_RATES = {"gemm": "GFLOP/s", "convolution": "GFLOP/s", "attention": "GFLOP/s", "memory": "GB/s", "host_copy": "GB/s", "all_reduce": "GB/s"}


def _shown(fit: Fit, estimate: PosteriorEstimate) -> tuple[float, float, float, str]:
    """Return value, lower and upper limit in the customary unit, and the unit."""
    values = (estimate.value, estimate.low, estimate.high)
    if estimate.name == FACTOR or fit.subject == NCCL:
        return *values, "times" if estimate.name == FACTOR else f"{estimate.name} times"
    if estimate.name != RATE or fit.probe in ("launch", "loading") or fit.subject in ("disk latency",):
        name = {RATE: "", "hop_latency": "step "}.get(estimate.name, f"{estimate.name.removesuffix(' time')} ")
        return values[0] * 1e6, values[1] * 1e6, values[2] * 1e6, f"{name}us"
    if fit.subject == "gloo processor":
        return values[0] * 1e9, values[1] * 1e9, values[2] * 1e9, "s/GB"
    scale, unit = (1.0, "IOPS") if fit.subject == "disk I/Os" else (1e-9, _RATES.get(fit.probe, "GB/s"))
    return scale / values[0], scale / values[2], scale / values[1], unit


def fit_document(records: MergedRecords, fitted: Mapping[str, Fit], machine: Machine) -> dict[str, Any]:
    """Return the JSON document of a fit, in seconds, bytes and FLOP."""
    rows = [
        {
            "subject": fit.subject,
            "probe": fit.probe,
            "parameter": estimate.name,
            "value_s": estimate.value,
            "low_s": estimate.low,
            "high_s": estimate.high,
            "identified": estimate.identified,
            "points": len(fit.times),
            "scatter": fit.posterior.noise,
        }
        for fit in fitted.values()
        for estimate in fit.posterior.estimates
    ]
    return {"machine": records.name, "records": list(records.files), "parameters": rows, "not_told": list(machine.undetermined)}
