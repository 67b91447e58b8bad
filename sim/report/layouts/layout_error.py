"""How far off may a run with a layout be? The errors of predictions for similar measured training runs.

``make validated`` writes ``hardware/validated_llm.json`` from the measured runs that come with `calibration`; their steps are simulated
from the descriptions alone. The errors are those of the nearest group: the same kind of layout, family of model and GPU; else layout and
GPU; else the layout; else all. A run extrapolates if its GPU was not measured, if it is beyond the measured runs (`_beyond`), or if
`unmeasured` names a reason. Then `WIDER` widens the errors. Those of a GPU that was not measured are at least those of each measured GPU.
The interval is at least as wide as the `IntervalLaw` for a source that was not measured, because few runs say little about their extremes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sim.events import Cause
from sim.report.validated import ExpectedError, MeasuredRange, validated_groups, validated_part
from sim.spec.transformer import Transformer
from sim.study.not_validated import not_validated

if TYPE_CHECKING:
    from sim.mesh import LayoutRun

SUMMARY: Final = "hardware/validated_llm.json"
EVERYTHING: Final = "all layouts"
HYBRID: Final = "hybrid"
DELTA_NET: Final = "delta net"
WIDER: Final = 1.5
"""Factor on errors, and on logarithms of the interval, outside the measured range (estimate: left-out sources differ this much)."""


FEW_SAMPLES: Final = 2
"""Samples of a micro-batch up to which the host may limit the step."""
TRAITS: Final = ("experts", "few_samples", "exposed", "novel")
"""What the scale of errors depends on: mixture of experts, `FEW_SAMPLES`, share of the step outside compute, and whether the run is unlike
those of other sources."""


@dataclass(frozen=True)
class IntervalLaw:
    """The law of log errors: the logarithm of their scale without traits, the effects of `TRAITS` on it, and the factor on the scale.

    `calibration.llm.intervals` fits it.
    """

    intercept: float
    effects: tuple[float, ...]
    factor: float

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> IntervalLaw:
        """Return the law that `document` wrote."""
        return cls(document["intercept"], tuple(document["effects"][name] for name in TRAITS), document["factor"])

    def document(self) -> dict[str, Any]:
        """Return the law as plain data."""
        effects = {name: round(effect, 4) for name, effect in zip(TRAITS, self.effects, strict=True)}
        return {"intercept": round(self.intercept, 4), "effects": effects, "factor": round(self.factor, 4)}

    def half_width(self, traits: Sequence[float]) -> float:
        """Return the distance of an interval's ends from the prediction, as a logarithm, for a run with *traits*."""
        return self.factor * math.exp(self.intercept + sum(effect * trait for effect, trait in zip(self.effects, traits, strict=True)))


def kind_of(tensor: int, context: int, pipeline: int, expert: int) -> str:
    """Return the kind of layout by which errors are grouped: expert, pipeline, tensor (or context) or data, the first that applies."""
    return "expert" if expert > 1 else "pipeline" if pipeline > 1 else "tensor" if tensor * context > 1 else "data"


def decoder_family(transformer: Transformer | None) -> str:
    """Return the family by which errors are grouped, or other if it is no decoder.

    Families are hybrids with Mamba-2 layers, those with gated delta nets, experts, and gated or plain feed-forward blocks.
    """
    if transformer is None:
        return "other"
    if {*(transformer.pattern or "")} & {*"MGPC"}:
        return DELTA_NET if "G" in (transformer.pattern or "") else HYBRID
    return "experts" if transformer.experts else "gated" if transformer.gated else "plain"


def group_names(kind: str, family: str, gpu: str) -> tuple[str, ...]:
    """Return the groups of measured runs that a run belongs to, nearest first. Hybrids, to which nothing is fitted, have their own.

    Delta nets, of which no run is measured, are nearest to all hybrids, whatever their GPU and layout.
    """
    if family == DELTA_NET:
        return f"{kind}, {family}, {gpu}", f"{family}, {gpu}", HYBRID
    if family == HYBRID:
        return f"{kind}, {family}, {gpu}", f"{family}, {gpu}", family
    return f"{kind}, {family}, {gpu}", f"{kind}, {gpu}", kind, EVERYTHING


def expected_layout_error(run: LayoutRun) -> ExpectedError | None:
    """Return the expected error (fractions) of *run*, and its basis; None if nothing was validated, as for ranks on CPU cores."""
    if run.node.gpu.host_cores:
        return None
    parallel, gpu = run.workload.training.parallel, run.node.gpu.name
    kind = kind_of(parallel.tensor, parallel.context, parallel.pipeline, parallel.expert)
    error = _error(kind, run.workload.model.transformer, gpu, unmeasured(run), lambda measured: _beyond(run, measured))
    if error is None:
        return None
    error["measured_over_predicted_95"] = _for_new_source(run, error)
    error["for_new_source"] = True
    error["not_validated"] = not_validated(run)
    return error


def _for_new_source(run: LayoutRun, error: ExpectedError) -> MeasuredRange:
    """Return the interval of *error*, at least as wide as the law says for *run* on a source that was not measured."""
    ends = error["measured_over_predicted_95"]
    document = validated_part("law", SUMMARY)
    if not document:
        return ends
    transformer = run.workload.model.transformer
    exposed = min(1.0, max(0.0, 1.0 - run.stalls[Cause.COMPUTE] / run.step_time))
    few = run.workload.training.batch <= FEW_SAMPLES
    traits = (float(bool(transformer and transformer.experts)), float(few), exposed, float(error["extrapolates"]))
    half = IntervalLaw.from_document(document).half_width(traits)
    return {"low": min(ends["low"], round(math.exp(-half), 4)), "high": max(ends["high"], round(math.exp(half), 4))}


def _beyond(run: LayoutRun, measured: Mapping[str, Any]) -> list[str]:
    """Return in what *run* exceeds the *measured* runs: GPUs, tokens of a sequence, context ranks; or in what it is below them.

    Context ranks with fewer tokens have smaller kernels and messages, and a slower network takes more of a step.
    """
    parallel, nic = run.workload.training.parallel, run.node.nic
    sizes = (
        (run.gpus, measured["most_gpus"], "{:,} GPUs"),
        (run.workload.sequence or 0, measured["most_sequence"], "sequences of {:,} tokens"),
        (parallel.context, measured["most_context"], "{:,} context ranks"),
    )
    beyond = [f"{words.format(size)}, measured up to {most:,}" for size, most, words in sizes if size > most]
    tokens, fewest = (run.workload.sequence or 0) // parallel.context, measured["least_context_tokens"]
    if parallel.context > 1 and fewest is not None and tokens < fewest:
        beyond.append(f"{tokens:,} tokens per context rank, measured from {fewest:,}")
    rate, least = nic.count * nic.bandwidth / min(run.gpus, run.node.gpu_count), measured["least_network"]
    if run.nodes > 1 and (least is None or rate < least):
        from_rate = f"measured from {8e-9 * least:.3g} Gbps" if least else "measured inside one node only"
        beyond.append(f"a network of {8e-9 * rate:.3g} Gbps per GPU, {from_rate}")
    return beyond


def unmeasured(run: LayoutRun) -> list[str]:
    """Return descriptions of what in *run* no measured training run has, or too few for a reliable error."""
    of_model = [] if run.workload.model.transformer is not None else ["no measured model other than decoders"]
    return [*of_model, *not_validated(run)]


def decoder_error(transformer: Transformer, gpu: str) -> ExpectedError | None:
    """Return the error of data-parallel runs of decoders like *transformer* on any number of *gpu*."""
    return _error("data", transformer, gpu, [], lambda measured: [])


def _error(
    kind: str,
    transformer: Transformer | None,
    gpu: str,
    unmeasured_features: list[str],
    beyond_of: Callable[[Mapping[str, Any]], list[str]],
) -> ExpectedError | None:
    family = decoder_family(transformer)
    names = group_names(kind, family, gpu)
    validated = validated_groups(SUMMARY)
    name = next((name for name in names if name in validated), None)
    if name is None:
        return None
    errors = validated[name]
    beyond = [*unmeasured_features, *beyond_of(errors)]
    measured = []
    if name in names[2:]:
        beyond.append(f"no or too few measured {kind} layouts on {gpu}")
        measured = [group for member, group in validated.items() if member.startswith(f"{kind}, {family}, ")]
    return _answer(name, errors, beyond, measured, similar=not unmeasured_features)


def _answer(name: str, errors: Mapping[str, Any], beyond: list[str], others: Sequence[Mapping[str, Any]], similar: bool) -> ExpectedError:
    """Return the errors of the group *name* in words and figures; each figure is at least as wide as those of *others*."""
    wider = WIDER if beyond else 1.0
    ends = _widened(errors["low"], errors["high"], wider)
    runs = f"{errors['points']:,} {'similar ' if similar else ''}measured training runs"
    rests = f"{runs} ({name}: {', '.join(errors['sources'])}), predicted from descriptions alone"
    reach = f"extrapolated: {'; '.join(beyond)}" if beyond else "interpolated: within the sizes measured"
    return {
        "median": round(max([wider * errors["median"], *(one["median"] for one in others)]), 4),
        "p90": round(max([wider * errors["p90"], *(one["p90"] for one in others)]), 4),
        "basis": f"{rests}; {reach}",
        "extrapolates": bool(beyond),
        "beyond": beyond,
        "measured_over_predicted_95": {
            "low": min([ends["low"], *(one["low"] for one in others)]),
            "high": max([ends["high"], *(one["high"] for one in others)]),
        },
    }


def _widened(low: float, high: float, wider: float) -> MeasuredRange:
    """Return an interval around the prediction, with each end's logarithm multiplied by *wider* or moved by at least a minimum.

    The minimum is *wider* - 1 times half the width of the interval. It matters if similar runs were all slower than predicted: then the
    lower end is close to 1, but outside the measured range it may still be too high.
    """
    half = 0.5 * math.log(high / low)

    def moved(end: float, sign: float) -> float:
        return round(math.exp(end + sign * (wider - 1.0) * max(sign * end, half)), 4)

    return {"low": moved(math.log(low), -1.0), "high": moved(math.log(high), 1.0)}
