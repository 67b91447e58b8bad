"""How does one call of ``calibration fit`` go? Read records, fit, check descriptions before they stand, show what was found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from calibration.machines.gloo_fit import gloo_fits, gloo_processor
from calibration.machines.layer_factors import layer_fits
from calibration.machines.machine_blocks import described, untold
from calibration.machines.machine_fit import FACTOR, RATE, Fit, Measured, fits, together
from calibration.machines.machine_yaml import Block, Machine, Sources, device_block, gpu_part, interval, with_layers
from calibration.machines.nccl_fit import NCCL, nccl_fit
from calibration.machines.posterior import PosteriorEstimate
from calibration.machines.predicted_steps import Written
from calibration.machines.step_factors import FIELD, WHOLE, step_fit, step_ratios, tells, with_factor
from sim.check import check_hardware, require
from sim.spec.hardware import Gpu
from sim.spec.library import load, load_hardware
from sim.spec.stack import Stack
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError
from sim.study.new.hardware import new_hardware


class Fitted(NamedTuple):
    """What a call of ``fit`` found."""

    measured: Measured
    fits: dict[str, Fit]
    machine: Machine
    ratios: Mapping[str, Sequence[float]]
    """Of steps over their layers, by model."""
    written: Written


def fit(paths: Sequence[Path], output: Path, hardware: str | None = None) -> Fitted:
    """Fit the records at *paths* and write the hardware to *output*, and the stack they tell to the file `stack_file` names.

    Raise SpecError, and leave everything as it was, where the records do not tell enough or an output cannot be written.
    """
    if output.suffix not in (".yaml", ".yml"):
        raise SpecError(f"{output}: the name of the output file must end in .yaml")
    measured = together(paths)
    hardware = hardware or wired(measured, output)
    fitted = fits(measured) | collective_fits(measured, hardware)
    kernels = device_block(measured, fitted)
    gpu = _gpu(kernels, output)
    fitted |= layer_fits(measured, gpu, _described_kernels(measured, fitted, gpu))
    device = with_layers(kernels, measured, fitted, gpu.vector_factor)
    block, stack = described(measured, fitted, device, output.stem, hardware, _reference(hardware, output))
    changed = {"vector_factor": gpu.vector_factor} if kernels.get("vector_factor") != device.get("vector_factor") else {}
    machine = Machine(block, changed, stack, tuple(untold(measured, fitted)))
    with _drafts(output) as drafts:
        _write(machine, *drafts)
        ratios = step_ratios(measured, _written(*drafts, machine))
        of_steps = step_fit(ratios)
        if of_steps is not None:
            fitted[WHOLE] = of_steps
        if of_steps is not None and stack is not None and tells(of_steps):
            sources = Sources(measured)
            sources.fitted(
                FIELD, "steps", f"steps without exchange take {interval(of_steps[FACTOR], 1.0, 'times')} as long as their layers"
            )
            machine = replace(machine, stack=with_factor(stack, of_steps, sources.texts[FIELD]))
            _write(machine, *drafts)
        for draft, path in zip(drafts[::-1], (stack_file(output), output), strict=True):  # the hardware last: it is what counts
            if draft.exists():
                write_file(path, draft.read_text(encoding="utf-8"))
    return Fitted(measured, fitted, machine, ratios, _written(output, stack_file(output), machine))


def _described_kernels(measured: Measured, fitted: Mapping[str, Fit], gpu: Gpu) -> set[str]:
    """Return the classes of kernels whose times are known: measured here, or of a GPU of the catalogue."""
    if measured.machine["gpus"] and gpu_part(measured.machine["gpus"][0]["name"]):
        return {*gpu.efficiency}
    return {kind for kind in ("conv", "gemm") if f"{kind} fp32" in fitted}


def wired(measured: Measured, output: Path) -> str | None:
    """Return the file beside *output* that describes the links of several GPUs as their driver printed them; None where it did not."""
    text = measured.machine.get("topology", "")
    if len(measured.machine["gpus"]) < 2 or not text:
        return None
    with tempfile.TemporaryDirectory() as folder:
        topo, path = Path(folder) / "topo.txt", output.with_name(f"{output.stem}-links.yaml")
        topo.write_text(text, encoding="utf-8")
        part = gpu_part(measured.machine["gpus"][0]["name"])
        new_hardware(topo, path, gpu=part.name if part else None, overwrite=True)
    return str(path)


def _reference(hardware: str | None, output: Path) -> str:
    """Return how the file *output* names *hardware*, where that is a file: relative to its own place."""
    if hardware is None or not Path(hardware).is_file():
        return ""
    path = os.path.relpath(hardware, output.absolute().parent)
    return path if os.sep in path else f"./{path}"


def collective_fits(measured: Measured, hardware: str | None = None) -> dict[str, Fit]:
    """Return the fits of collectives; those of NCCL need the links of a known machine."""
    made: list[Fit | None] = []
    if measured.machine["backend"] == "gloo":
        made = [*gloo_fits(measured), gloo_processor(measured)]
    elif measured.machine["backend"] == NCCL and hardware is not None:
        made = [nccl_fit(measured, load_hardware(hardware).spec)]
    return {each.subject: each for each in made if each is not None}


def _gpu(block: Block, output: Path) -> Gpu:
    """Return the device that *block* describes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{output.stem}.yaml"
        path.write_text(yaml_text(block), encoding="utf-8")
        return load(Gpu, path).spec


def _written(hardware: Path, stack: Path, machine: Machine) -> Written:
    """Return the files of a fit, and how its predictions are made without what whole layers told."""
    undone = tuple(f"node.gpu.{key}={value}" for key, value in machine.kernels.items())
    return Written(hardware, stack if machine.stack else None, undone, {"elementwise_traffic": 1.0})


def stack_file(output: Path) -> Path:
    """Return where the software stack of the hardware at *output* stands."""
    return output.with_name(f"{output.stem}-stack.yaml")


def yaml_text(block: Mapping[str, Any]) -> str:
    """Return the YAML of *block*."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes lists in one line, and everything in full."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True))
    return yaml.dump(dict(block), Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)


@contextmanager
def _drafts(output: Path) -> Iterator[tuple[Path, Path]]:
    """Give names for drafts of hardware and stack, beside *output*, so that what they extend is found; they go when the block ends."""
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
    """Write drafts of hardware and stack, and raise SpecError unless they load and pass all checks."""
    hardware.write_text(yaml_text(machine.hardware), encoding="utf-8")
    loaded = load_hardware(str(hardware.absolute()))
    require(check_hardware(loaded.spec, loaded.document))
    if machine.stack is not None:
        stack.write_text(yaml_text(machine.stack), encoding="utf-8")
        load(Stack, stack)


def fit_table(fitted: Mapping[str, Fit]) -> str:
    """Return every parameter with its interval, a line each."""
    lines = [f"{'':34} {'value':>12}   {'95% interval':27} {'points':>6} {'scatter':>8}"]
    for fit in fitted.values():
        for estimate in fit.found.estimates:
            value, low, high, unit = _shown(fit, estimate)
            told = f"{low:11.4g} to {high:<11.4g}" if estimate.identified else "not identified: its prior    "
            name = f"{fit.subject}, {unit}"
            lines.append(f"{name:34} {value:12.4g}   {told:27} {len(fit.times):6} {100 * fit.found.noise:6.1f}%")
    return "\n".join(lines)


_RATES = {"gemm": "GFLOP/s", "convolution": "GFLOP/s", "attention": "GFLOP/s", "memory": "GB/s", "host_copy": "GB/s", "all_reduce": "GB/s"}


def _shown(fit: Fit, estimate: PosteriorEstimate) -> tuple[float, float, float, str]:
    """Return value and interval in the unit that people use for it."""
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


def fit_document(measured: Measured, fitted: Mapping[str, Fit], machine: Machine) -> dict[str, Any]:
    """Return the JSON document of a fit: seconds, bytes and FLOP."""
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
            "scatter": fit.found.noise,
        }
        for fit in fitted.values()
        for estimate in fit.found.estimates
    ]
    return {"machine": measured.name, "records": list(measured.files), "parameters": rows, "not_told": list(machine.untold)}
