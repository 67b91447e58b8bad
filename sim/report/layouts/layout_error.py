"""How far off may a run with a layout be? The errors that predictions of measured training runs showed, of rows like it.

``hardware/validated_llm.json`` is written by ``make validated`` from measured runs that come with `calibration`:
steps simulated from the descriptions alone. The nearest group answers: the same kind of layout, family of model and GPU; then layout and
GPU; then the layout; then all. A GPU, or more GPUs, than were measured extrapolates, and widens the errors by `WIDER`; so does what
`unmeasured` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sim.report.validated import validated_groups
from sim.spec.transformer import Transformer
from sim.study.not_validated import not_validated

if TYPE_CHECKING:
    from sim.mesh import LayoutRun

SUMMARY: Final = "hardware/validated_llm.json"
EVERYTHING: Final = "all layouts"
WIDER: Final = 1.5
"""Factor on errors, and on the interval's logarithms, outside what was measured: estimate (sources left out differ so from others)."""


def kind_of(tensor: int, context: int, pipeline: int, expert: int) -> str:
    """Return the kind of layout that shares its errors: expert, pipeline, tensor (or context) or data, the first that applies."""
    return "expert" if expert > 1 else "pipeline" if pipeline > 1 else "tensor" if tensor * context > 1 else "data"


def family_of(transformer: Transformer | None) -> str:
    """Return the family of models that shares its errors: experts, gated or plain feed-forward blocks; other where it is no decoder."""
    if transformer is None:
        return "other"
    return "experts" if transformer.experts else "gated" if transformer.gated else "plain"


def group_names(kind: str, family: str, gpu: str) -> tuple[str, ...]:
    """Return the groups of measured runs that a run belongs to, the nearest first."""
    return f"{kind}, {family}, {gpu}", f"{kind}, {gpu}", kind, EVERYTHING


def expected_layout_error(run: LayoutRun) -> dict[str, Any] | None:
    """Return the error (fractions) to expect of *run*, and what it rests on; None where nothing was validated."""
    parallel, gpu = run.workload.training.parallel, run.node.gpu.name
    kind = kind_of(parallel.tensor, parallel.context, parallel.pipeline, parallel.expert)
    error = _error(kind, run.workload.model.transformer, gpu, run.gpus, unmeasured(run))
    return None if error is None else error | {"not_validated": not_validated(run)}


def unmeasured(run: LayoutRun) -> list[str]:
    """Return in words what of *run* no measured training run of the records has, or too few to speak for it."""
    of_model = [] if run.workload.model.sequence is not None else ["no model without a sequence of tokens was measured"]
    return [*of_model, *not_validated(run)]


def decoder_error(transformer: Transformer, gpu: str) -> dict[str, Any] | None:
    """Return the error of data-parallel runs of decoders like *transformer* on *gpu*, of any number."""
    return _error("data", transformer, gpu, 0, [])


def _error(kind: str, transformer: Transformer | None, gpu: str, gpus: int, unlike: list[str]) -> dict[str, Any] | None:
    names = group_names(kind, family_of(transformer), gpu)
    validated = validated_groups(SUMMARY)
    name = next((name for name in names if name in validated), None)
    if name is None:
        return None
    errors = validated[name]
    beyond = [*unlike, *([f"{gpus} GPUs, measured up to {errors['most_gpus']}"] if gpus > errors["most_gpus"] else [])]
    if name in names[2:]:
        beyond.append(f"no {kind} layout was measured on {gpu}")
    return _answer(name, errors, beyond, like=not unlike)


def _answer(name: str, errors: Mapping[str, Any], beyond: list[str], like: bool) -> dict[str, Any]:
    wider = WIDER if beyond else 1.0
    runs = f"{errors['points']} measured training runs" + (" like it" if like else "")
    rests = f"{runs} ({name}: {', '.join(errors['sources'])}), predicted from descriptions alone"
    reach = f"extrapolated: {'; '.join(beyond)}" if beyond else "interpolated: within the sizes measured"
    return {
        "median": round(wider * errors["median"], 4),
        "p90": round(wider * errors["p90"], 4),
        "basis": f"{rests}; {reach}",
        "extrapolates": bool(beyond),
        "measured_over_predicted_95": {"low": round(errors["low"] ** wider, 4), "high": round(errors["high"] ** wider, 4)},
    }
