"""How large are errors of the simplest predictors? Two rules: a constant utilization per GPU and precision, and 6PD over peak.

The first counts causal attention as the program's MFU does, inside windows and documents, and has one utilization for each GPU and
precision or, if a GPU was not measured, for each precision. The second has one efficiency for all. Both use medians of other sources'
rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from calibration.llm.case import Case
from calibration.llm.weights import layer_parameters, total_parameters
from sim.spec.decoder import attended_pairs

RULES: Final = ("constant_mfu", "six_pd")


def active_parameters(case: Case) -> float:
    """Return the parameters that are active for one token: of the experts, those it is routed to; without the embedding's lookup."""
    shape = case.shape
    _, _, experts = layer_parameters(case)
    with_experts = sum(shape.has_experts(layer) for layer in range(shape.layers))
    unused = with_experts * experts * (1 - shape.experts_per_token / shape.experts) if shape.experts else 0.0
    lookup = 0.0 if shape.tied else float(shape.vocab) * shape.hidden
    return total_parameters(case) - unused - lookup


def model_flop(case: Case, attention: bool) -> float:
    """Return the FLOP of one step of *case*: 6 per parameter and token (4 if weights are frozen), and causal *attention*."""
    tokens = case.global_batch * case.seq
    each = (4.0 if case.lora else 6.0) * active_parameters(case)
    if attention:
        shape, keys = case.shape, case.document_tokens or case.seq
        attending = [layer for layer in range(shape.layers) if "*" in shape.mixers(layer)]
        pairs = sum(attended_pairs(keys, shape.window_of(layer), shape.chunked) for layer in attending)
        each += 6.0 * pairs / keys * shape.heads * (shape.head_size + shape.value_size)
    return each * tokens


def ideal_time(case: Case) -> float:
    """Return the seconds of a step of *case* at the GPUs' peak rate, without attention."""
    return model_flop(case, attention=False) / (case.gpus * case.chip.peak[case.precision])


def efficiencies(cases: Sequence[Case]) -> dict[str, float]:
    """Return the rules' efficiencies on *cases*, one vote per source, by ``mfu:GPU:precision``, ``mfu:precision`` and ``six_pd``."""
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        if not case.measured:
            continue
        ideal = case.measured * case.gpus * case.chip.peak[case.precision]
        utilization, source = model_flop(case, attention=True) / ideal, case.row.source
        shares[f"mfu:{case.chip.name}:{case.precision}"][source].append(utilization)
        shares[f"mfu:{case.precision}"][source].append(utilization)
        shares["six_pd"][source].append(model_flop(case, attention=False) / ideal)
    return {name: median(median(values) for values in by_source.values()) for name, by_source in shares.items()}


def rule_times(case: Case, efficiencies: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a step of *case* that each rule predicts with *efficiencies*."""
    peak = case.gpus * case.chip.peak[case.precision]
    utilization = (
        efficiencies.get(f"mfu:{case.chip.name}:{case.precision}")
        or efficiencies.get(f"mfu:{case.precision}")
        or efficiencies.get("mfu:16bit")
        or 0.4
    )
    return {
        "constant_mfu": model_flop(case, attention=True) / (peak * utilization),
        "six_pd": model_flop(case, attention=False) / (peak * (efficiencies.get("six_pd") or 0.4)),
    }
