"""Which network constants explain a cluster's ``network`` rows? One maximum a posteriori fit over all its models jointly.

It is a least-squares fit of log step times. Residuals are in units of their noise (`calibration.clusters.scatter`); the priors of
`calibration.clusters.network_parameters` are further residuals. A smooth Huber loss limits the weight of outliers. All workloads weigh the
same, because the rows of one workload share the errors of its description. A job with unmeasured compute gets its own factor on layer
times in the same fit; a job measured on one GPU only gets one with a narrow prior. A constant that predicts left-out rows no better than
its prior stays there (`calibration.clusters.acceptance`). The covariance is that of the linearized problem (Bishop, Pattern Recognition
and Machine Learning, 2006, section 4.4). A prediction's interval is ``exp(+-1.96 WIDENING sqrt(J C J' + noise^2 + (e x exposed)^2 +
(s x straggler)^2))`` around it. *exposed* is the share of the step that waits for the exchange, *straggler* the share that waits for the
slowest rank, and e and s are `EXCHANGE_DEVIATION` and `STRAGGLER_DEVIATION`: errors of the model grow with these shares.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from calibration.clusters.acceptance import LinearizedFit, select_constants
from calibration.clusters.compute_scale import ComputeScale, group_keys
from calibration.clusters.evaluate import Evaluator, Prediction, SimulatedCase
from calibration.clusters.network_parameters import (
    AS_DESCRIBED,
    DISTRIBUTED,
    EVERYWHERE,
    LOG_ODDS_AGAINST,
    NIC,
    SOCKETS,
    USUAL_SLOWDOWN,
    NetworkParameter,
    affects,
    alternative_paths,
    parameters_of,
    path_factors,
    places_used,
)
from calibration.clusters.priors import prior
from calibration.clusters.scatter import (
    LEAST_NOISE,
    LINEAR_LOSS_DEVIATIONS,
    Scatter,
    ScatterEstimator,
    likeliest_scatter,
    loss,
    median_scatter,
    penalized_misfit,
    widen,
)
from calibration.questions import RunQuestion
from calibration.run_records import RunRecord

if TYPE_CHECKING:
    import numpy as np

UNKNOWN_COMPUTE_WIDTH: Final = prior("compute", "unknown compute")
"""Prior width of the factor on the layer times of a job with unmeasured compute."""
DIFFERENCE_STEP: Final = 0.03
"""Finite-difference step in a log factor."""
MOST_ROWS: Final = 120
"""Maximum number of network rows that a cluster's fit uses; of more rows, every k-th is used."""
MOST_ROUNDS: Final = 12
MOST_TURNS: Final = 5
"""Maximum rounds in which constants and scatter are fitted in turn, if a scatter in seconds is tried."""
LEAST_UNEXPLAINED_SCATTER: Final = 2.0 * LEAST_NOISE
"""Relative scatter from which an additional scatter in seconds is tried."""
IMMATERIAL_CHANGE: Final = 0.005
"""A parameter stays at its prior if one standard deviation of it changes no log step time by more than this."""
JOB_WIDTH: Final = prior("compute", "job")
"""Prior width of a job's own slowdown of layers on several GPUs, in addition to the slowdown that its cluster's jobs share."""
UNSEEN_JOB_DEVIATION: Final = prior("compute", "unseen")
"""Relative standard deviation of the slowdown of layers on several GPUs, for a job without network rows."""
COMPUTE: Final = "compute"
JOB_SLOWDOWN: Final = "job"
_COMPUTES: Final = (COMPUTE, DISTRIBUTED, JOB_SLOWDOWN)
"""Parameters of compute, not of the network."""
_SLOWER: Final = {"efficiency": -1.0, "total": -1.0, "pair": -1.0, "latency": 1.0}
"""Sign of the change of each network constant that makes the network slower."""
ASSUMED_SCATTER: Final = Scatter(0.06)
"""Assumed scatter of steps without rows: estimate, about twice what two equal runs differ by (`calibration.clusters.scatter`)."""
EXPLAINED_VARIANCE: Final = 0.95
"""Share of the variance of predictions that the directions simulated for intervals must explain."""
EXCHANGE_DEVIATION: Final = prior("exchange", "form")
"""Relative standard deviation of exposed communication, in addition to the uncertainty of the constants."""
STRAGGLER_DEVIATION: Final = prior("exchange", "spread")
"""Relative standard deviation of the wait for the slowest rank, in addition to the uncertainty of the constants."""
LAYER_TIME_DEVIATION: Final = prior("compute", "layer model")
"""Relative standard deviation of unmeasured layer times."""
WIDENING: Final = prior("interval", "widening")
"""Factor on the standard deviation of a fitted model, because a cluster differs from those on which the widths were determined."""
FEW_ROWS: Final = 24
"""Maximum number of rows on which the directions that matter are determined."""


class SharedConstants(NamedTuple):
    """Constants carried over between clusters: they rest on measured runs of several sources, or of one."""

    usual_slowdown: float = USUAL_SLOWDOWN
    exchange_deviation: float = EXCHANGE_DEVIATION
    unseen_job_deviation: float = UNSEEN_JOB_DEVIATION
    job_width: float = JOB_WIDTH
    widening: float = WIDENING
    widths: tuple[tuple[str, float], ...] = ()
    """Prior widths by constant, in place of those of `calibration.clusters.network_parameters`."""


SHARED_CONSTANTS: Final = SharedConstants()
"""The constants carried over from all clusters."""


@dataclass(frozen=True)
class ClusterModel:
    """Everything that determines the predictions of one cluster: measured compute factors, fitted log factors and their uncertainty."""

    compute: ComputeScale
    parameters: tuple[NetworkParameter, ...] = ()
    values: tuple[float, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    noise: Scatter = ASSUMED_SCATTER
    """Standard deviation of log step time beyond the parameters' own uncertainty."""
    path: str = AS_DESCRIBED
    """The path that traffic takes inside a node."""
    jobs: tuple[Any, ...] = field(default=())
    """Jobs whose compute, or whose slowdown on several GPUs, is fitted too, in the order of the parameters that scale them."""
    shared: SharedConstants = SHARED_CONSTANTS
    is_fitted: bool = False
    """Whether it was fitted to network rows."""
    _places: dict[RunRecord, frozenset[str]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def widening(self) -> float:
        """Return the factor on standard deviations; 1 without network rows, as the priors are wide enough."""
        return self.shared.widening if self.is_fitted else 1.0

    def simulated_case(self, question: RunQuestion, values: Sequence[float] | np.ndarray | None = None) -> SimulatedCase:
        """Return the case to simulate for *question*, with the fitted values or *values*; parameters that cannot affect it are left out."""
        used = self.values if values is None else tuple(map(float, values))
        if question.record not in self._places:
            self._places[question.record] = places_used(question, self.path)
        places = self._places[question.record]
        network = [pair for pair in zip(self.parameters, used, strict=True) if pair[0].constant not in _COMPUTES and pair[1] != 0.0]
        moved = tuple(pair for pair in network if affects(pair[0], question, places))
        return SimulatedCase(question.record, self._scale(question, used), moved + path_factors(self.path))

    def _scale(self, question: RunQuestion, values: Sequence[float]) -> float:
        measured = self.compute.factor(question)
        if measured is not None:
            return measured * self.slowdown(question, values)
        return math.exp(self._of_job(question, values))

    def _of_job(self, question: RunQuestion, values: Sequence[float]) -> float:
        """Return the fitted log factor on the layer times of the job of *question*; 0 if none is fitted."""
        first, keys = len(self.parameters) - len(self.jobs), group_keys(question)
        return next((values[first + number] for number, group in enumerate(self.jobs) if group in keys), 0.0)

    def knows_compute(self, question: RunQuestion) -> bool:
        """Return whether measured runs determine the compute time of *question*: on this GPU with this software, or fitted too."""
        return self.compute.factor(question) is not None or self.has_job_parameter(question)

    def has_job_parameter(self, question: RunQuestion) -> bool:
        """Return whether the compute of *question*, or its slowdown on several GPUs, has a parameter of its own."""
        return any(group in group_keys(question) for group in self.jobs)

    def slowdown(self, question: RunQuestion, values: Sequence[float] | None = None) -> float:
        """Return the ratio of layer times of *question* on several GPUs to those measured on one GPU."""
        if not self.compute.needs_slowdown(question):
            return 1.0
        used = self.values if values is None else values
        pairs = zip(self.parameters, used, strict=True)
        common = next((value for parameter, value in pairs if parameter.constant == DISTRIBUTED), 0.0)
        return math.exp(self.shared.usual_slowdown + common + self._of_job(question, used))


def prior_model(
    compute: ComputeScale, questions: Sequence[RunQuestion], path: str = AS_DESCRIBED, shared: SharedConstants = SHARED_CONSTANTS
) -> ClusterModel:
    """Return the model of a cluster before any network row is seen: constants as described, with the uncertainty of their priors."""
    widths = dict(shared.widths)
    parameters = tuple(one._replace(width=widths.get(one.constant, one.width)) for one in parameters_of(questions, path))
    return ClusterModel(compute, parameters, (0.0,) * len(parameters), _diagonal(parameters), path=path, shared=shared)


def fit_model(
    compute: ComputeScale,
    rows: Sequence[RunQuestion],
    questions: Sequence[RunQuestion],
    evaluator: Evaluator,
    shared: SharedConstants = SHARED_CONSTANTS,
) -> ClusterModel:
    """Return the model that explains the network *rows* best; *questions* are all runs that it will predict.

    The other paths that traffic may take inside a node are fitted as well, unless even a perfect fit with all constants at their priors
    would leave them less probable. Another path is chosen if it is more probable and predicts left-out rows better
    (`calibration.clusters.acceptance`).
    """
    rows = _thinned(rows)
    best = _fitted(prior_model(compute, questions, shared=shared), rows, evaluator)
    if not rows:
        return best.model
    perfect_misfit = len(rows) * math.log(LEAST_NOISE)  # of a perfect fit with all constants at their priors
    for path in alternative_paths(rows):
        if perfect_misfit + LOG_ODDS_AGAINST[path] >= best.misfit:
            continue
        other = _fitted(prior_model(compute, questions, path, shared), rows, evaluator)
        if other.misfit + LOG_ODDS_AGAINST[path] < best.misfit and best.linearized.misfit(other.errors) < best.linearized.misfit(
            best.errors
        ):
            best = other._replace(misfit=other.misfit + LOG_ODDS_AGAINST[path])
    return replace(best.model, is_fitted=True)


class _NetFit(NamedTuple):
    """A fitted model, its negative log probability, and its error on each row when that row is left out (*errors*)."""

    model: ClusterModel
    misfit: float
    linearized: LinearizedFit
    errors: np.ndarray


def _fitted(prior: ClusterModel, rows: Sequence[RunQuestion], evaluator: Evaluator) -> _NetFit:
    """Return *prior* fitted to *rows*; only constants that predict left-out rows better than their prior change."""
    import numpy as np

    model = _with_groups(prior, rows)
    if not rows or not model.parameters:
        nothing = np.zeros(0)
        return _NetFit(model, 0.0, LinearizedFit(nothing, np.zeros((0, 0)), nothing, nothing, nothing, nothing, nothing, nothing), nothing)
    widths = np.array([parameter.width for parameter in model.parameters])
    start = _start(model, rows, widths, evaluator)
    # A constant keeps its prior, and costs no further simulation, if it hardly affects any row at the start, with the network as described,
    # and with the network one width slower than at the start.
    points = (start, 0 * start, start + _slower(model, widths))
    slopes = [sensitivities(replace(model, values=tuple(point.tolist())), rows, np.diag(widths), evaluator) for point in points]
    moving = np.flatnonzero(np.abs(slopes).max(axis=(0, 1)) > IMMATERIAL_CHANGE).tolist()
    moves = np.array([one for one in moving if _is_identifiable(model, one, rows)], dtype=np.intp)
    best = _maximum(model, rows, start[moves], moves, widths, evaluator)
    kept = moves[select_constants(best.linearized, _blocks_to_judge(model, moves.tolist(), rows))]
    if len(kept) < len(moves):
        moves, best = kept, _maximum(model, rows, best.values[kept], kept, widths, evaluator)
    own = np.array([one for one in moves if model.parameters[one].constant in (COMPUTE, JOB_SLOWDOWN)], dtype=np.intp)
    if len(own) < len(moves) and best.linearized.misfit(
        _without_network(model, rows, best, moves, own, evaluator)
    ) <= best.linearized.misfit(best.errors):
        moves, best = own, _maximum(model, rows, best.values[own], own, widths, evaluator)
    covariance = np.diag(widths**2)
    covariance[np.ix_(moves, moves)] = best.covariance
    predicted = best.steps * np.exp(best.linearized.errors)
    misfit = float(np.sum(np.log(best.noise.deviations(predicted)))) + float(np.sum(loss(best.values / widths)))
    model = replace(model, values=tuple(best.values.tolist()), covariance=tuple(map(tuple, covariance.tolist())), noise=best.noise)
    return _NetFit(model, misfit, best.linearized, best.errors)


def _without_network(
    model: ClusterModel, rows: Sequence[RunQuestion], best: _Maximum, moves: np.ndarray, own: np.ndarray, evaluator: Evaluator
) -> np.ndarray:
    """Return the errors on left-out rows with the network as described and only the constants of jobs fitted: *own*, a part of *moves*."""
    import numpy as np

    values = np.zeros(len(model.parameters))
    values[own] = best.values[own]
    times = evaluator.predict_all([model.simulated_case(row, values) for row in rows])
    errors = np.log([one.step for one in times]) - np.log(best.steps)
    places = np.flatnonzero(np.isin(moves, own))
    alone = tuple(new for new, old in enumerate(places.tolist()) if old in best.linearized.single_row_constants)
    changes = {
        "slopes": best.linearized.slopes[:, places],
        "values": values[own],
        "widths": best.linearized.widths[places],
        "single_row_constants": alone,
    }
    return replace(best.linearized, errors=errors, **changes).left_out_errors(range(len(own)))


def _is_identifiable(model: ClusterModel, number: int, rows: Sequence[RunQuestion]) -> bool:
    """Return whether *rows* can determine a constant. The cost per step or launch shows in its growth with ranks: two are too few."""
    parameter = model.parameters[number]
    if parameter.constant not in ("latency", "launch"):
        return True
    return any(row.job.ranks > 2 and affects(parameter, row, places_used(row, model.path)) for row in rows)


def _blocks_to_judge(model: ClusterModel, moves: Sequence[int], rows: Sequence[RunQuestion]) -> list[list[int]]:
    """Return those of *moves* (by position) that leaving rows out can judge, grouped by the place where they act.

    A job's constant that only a single row can determine is not among them.
    """
    first = len(model.parameters) - len(model.jobs)
    blocks: dict[object, list[int]] = defaultdict(list)
    for place, number in enumerate(moves):
        if number < first:
            parameter = model.parameters[number]
            blocks[parameter.place or parameter.constant].append(place)
        elif _rows_of_job(model, number, rows) > 1:
            blocks[number].append(place)
    return list(blocks.values())


def _rows_of_job(model: ClusterModel, number: int, rows: Sequence[RunQuestion]) -> int:
    """Return how many of *rows* are of the job that a constant belongs to; 0 if it belongs to no job."""
    place = number - len(model.parameters) + len(model.jobs)
    return 0 if place < 0 else sum(model.jobs[place] in group_keys(row) for row in rows)


def _slower(model: ClusterModel, widths: np.ndarray) -> np.ndarray:
    """Return the change of each constant that makes the whole network one prior width slower."""
    import numpy as np

    directions: np.ndarray = np.array([_SLOWER.get(parameter.constant, 0.0) for parameter in model.parameters]) * widths
    return directions


def _start(model: ClusterModel, rows: Sequence[RunQuestion], widths: np.ndarray, evaluator: Evaluator) -> np.ndarray:
    """Return the start that explains *rows* best: as described, or one or two widths slower everywhere, between nodes, or between sockets.

    If all communication is hidden, no constant of the network affects a step, and a search from there would end at once. Jobs with
    unmeasured compute start at the factor that makes the median error of their rows zero.
    """
    import numpy as np

    slower = _slower(model, widths)
    places = np.array([parameter.place for parameter in model.parameters])
    directions = [
        slower,
        *(
            slower * (places == place)
            for place in (NIC, SOCKETS)
            if (slower * (places == place)).any() and (slower * (places != place)).any()
        ),
    ]
    points = [0.0 * slower, *(direction * steps for direction in directions for steps in (1.0, 2.0))]
    times = [
        prediction.step for prediction in evaluator.predict_all([model.simulated_case(row, point) for point in points for row in rows])
    ]
    errors = np.log([row.step_time for row in rows]) - np.log(np.array(times).reshape(len(points), len(rows)))
    first = len(model.parameters) - len(model.jobs)
    for number, group in enumerate(model.jobs):
        if model.parameters[first + number].constant != COMPUTE:
            continue
        mine = [index for index, row in enumerate(rows) if group in group_keys(row)]
        middle = np.median(errors[:, mine], axis=1)
        errors[:, mine] -= middle[:, None]
        for point, shift in zip(points, middle, strict=True):
            point[first + number] = shift
    best: np.ndarray = points[int(np.abs(errors).sum(axis=1).argmin())]
    return best


class _Maximum(NamedTuple):
    """The most probable constants, the noise, the covariance of the constants that moved, and the errors on left-out rows (*errors*)."""

    values: np.ndarray
    noise: Scatter
    covariance: np.ndarray
    linearized: LinearizedFit
    errors: np.ndarray
    steps: np.ndarray


def _maximum(
    model: ClusterModel, rows: Sequence[RunQuestion], moved: np.ndarray, moves: np.ndarray, widths: np.ndarray, evaluator: Evaluator
) -> _Maximum:
    """Return the most probable values of the constants *moves* (indices), starting from *moved*; the others stay at their priors."""
    import numpy as np
    from scipy.optimize import least_squares

    steps, weights = np.array([row.step_time for row in rows]), np.array(_weights(rows))
    units = np.eye(len(widths))[moves]

    def misses(moved: np.ndarray) -> np.ndarray:
        solved = evaluator.predict_all([model.simulated_case(row, moved @ units) for row in rows])
        return np.asarray(np.log([prediction.step for prediction in solved]) - np.log(steps))

    def residuals(moved: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        return np.concatenate([misses(moved) * np.sqrt(weights) / sigma, moved / widths[moves]])

    def slopes(moved: np.ndarray) -> np.ndarray:
        there = replace(model, values=tuple((moved @ units).tolist()))
        return sensitivities(there, rows, DIFFERENCE_STEP * units, evaluator) / DIFFERENCE_STEP if len(moves) else np.zeros((len(rows), 0))

    def jacobian(moved: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        return np.vstack([slopes(moved) * (np.sqrt(weights) / sigma)[:, None], np.diag(1.0 / widths[moves])])

    def predicted(moved: np.ndarray) -> np.ndarray:
        return np.asarray(steps * np.exp(misses(moved)))

    def alternate(estimate: ScatterEstimator, turns: int) -> tuple[float, np.ndarray, Scatter]:
        """Return the negative log probability, the constants and the scatter, which are fitted in turn."""
        here, noise = moved, Scatter()
        for _ in range(turns):
            settings = {
                "loss": "soft_l1",
                "f_scale": LINEAR_LOSS_DEVIATIONS,
                "x_scale": widths[moves],
                "max_nfev": MOST_ROUNDS,
                "xtol": 1e-3,
                "ftol": 1e-3,
            }
            sigma = noise.deviations(predicted(here))
            here = least_squares(residuals, here, jacobian, args=(sigma,), **settings).x if len(moves) else here
            before, noise = noise, estimate(misses(here), predicted(here), weights)
            if noise == before:
                break
        return penalized_misfit(misses(here), predicted(here), weights, noise) + float(np.sum(loss(here / widths[moves]))), here, noise

    solved = alternate(median_scatter, 2)
    if widen(solved[2], misses(solved[1]), predicted(solved[1])).relative >= LEAST_UNEXPLAINED_SCATTER:
        solved = min(solved, alternate(likeliest_scatter, MOST_TURNS), key=lambda one: one[0])
    _, best, noise = solved
    errors, sigma = misses(best), noise.deviations(predicted(best))
    slope = jacobian(best, sigma)
    ranks = np.array([float(row.job.ranks) for row in rows])
    counts = weights * ranks / ranks.mean()
    alone = tuple(place for place, number in enumerate(moves.tolist()) if _rows_of_job(model, number, rows) == 1)
    linearized = LinearizedFit(errors, slopes(best), best, widths[moves], sigma, weights, counts, misses(0.0 * best), alone)
    covariance = np.linalg.inv(slope.T @ slope) if len(moves) else np.zeros((0, 0))
    noise = widen(noise, errors, predicted(best))
    return _Maximum(best @ units, noise, covariance, linearized, linearized.left_out_errors(range(len(moves))), steps)


def _weights(rows: Sequence[RunQuestion]) -> list[float]:
    """Return the weight of each row, 1 on average, so that all workloads have the same total weight."""
    counts = Counter(row.record.workload for row in rows)
    return [len(rows) / len(counts) / counts[row.record.workload] for row in rows]


def sensitivities(model: ClusterModel, rows: Sequence[RunQuestion], steps: np.ndarray, evaluator: Evaluator) -> np.ndarray:
    """Return the change of the log step time of each of *rows* along each of *steps* (a matrix with one step of log factors per row)."""
    import numpy as np

    here = np.array(model.values)
    points = [here, *(here + step for step in steps)]
    cases = [model.simulated_case(row, point) for point in points for row in rows]
    logs = np.log([prediction.step for prediction in evaluator.predict_all(cases)]).reshape(len(points), len(rows))
    return np.asarray((logs[1:] - logs[0]).T)


def predictions(model: ClusterModel, questions: Sequence[RunQuestion], evaluator: Evaluator) -> list[tuple[Prediction, float]]:
    """Return the prediction of each of *questions* with the standard deviation of the logarithm of its step time."""
    import numpy as np

    simulated = evaluator.predict_all([model.simulated_case(row) for row in questions])
    outside = np.array([_outside_deviation(model, row, prediction) for row, prediction in zip(questions, simulated, strict=True)])
    noise = model.noise.deviations(np.array([prediction.step for prediction in simulated]))
    if not model.parameters or not questions:
        return list(zip(simulated, map(float, model.widening * np.hypot(noise, outside)), strict=True))
    slope = sensitivities(model, questions, _directions(model, questions, evaluator), evaluator)
    spread = model.widening * np.sqrt(np.sum(slope**2, axis=1) + noise**2 + outside**2)
    return list(zip(simulated, map(float, spread), strict=True))


def _outside_deviation(model: ClusterModel, question: RunQuestion, prediction: Prediction) -> float:
    """Return the relative standard deviation outside the parameters: that of the network model's form and of unmeasured layer times."""
    exposed, straggler = max(0.0, prediction.exposed) / prediction.step, prediction.straggler / prediction.step
    unknown = 0.0 if model.knows_compute(question) else LAYER_TIME_DEVIATION
    if model.compute.needs_slowdown(question) and not model.has_job_parameter(question):
        unknown = model.shared.unseen_job_deviation
    unknown = math.hypot(unknown, model.compute.deviation(question))
    return math.hypot(model.shared.exchange_deviation * exposed, STRAGGLER_DEVIATION * straggler, unknown * (1.0 - exposed))


def _directions(model: ClusterModel, questions: Sequence[RunQuestion], evaluator: Evaluator) -> np.ndarray:
    """Return steps of one standard deviation along the axes of the covariance that matter, as determined on a few of *questions*."""
    import numpy as np

    variances, axes = np.linalg.eigh(np.array(model.covariance))
    steps = (axes * np.sqrt(np.maximum(variances, 0.0))).T
    # a hop that is not yet the slowest affects steps in one direction only
    slower = steps @ np.array([_SLOWER.get(parameter.constant, 0.0) for parameter in model.parameters])
    steps = np.where(slower[:, None] < 0.0, -steps, steps)
    few = questions[:: -(-len(questions) // FEW_ROWS)]
    moved = np.mean(sensitivities(model, few, steps, evaluator) ** 2, axis=0)
    order = np.argsort(-moved)
    kept = 1 + int(np.searchsorted(np.cumsum(moved[order]), EXPLAINED_VARIANCE * moved.sum()))
    return np.asarray(steps[order[:kept]][moved[order[:kept]] > IMMATERIAL_CHANGE**2 / 10])


def _with_groups(model: ClusterModel, rows: Sequence[RunQuestion]) -> ClusterModel:
    """Return *model* with one more parameter for each job of *rows* whose compute is unmeasured or was measured on a single GPU."""
    own = model.shared.job_width
    jobs = {group_keys(row)[3]: row for row in rows if model.compute.factor(row) is None or model.compute.needs_slowdown(row)}
    kinds = ((COMPUTE, UNKNOWN_COMPUTE_WIDTH) if model.compute.factor(row) is None else (JOB_SLOWDOWN, own) for row in jobs.values())
    extra = tuple(NetworkParameter(EVERYWHERE, constant, width) for constant, width in kinds)
    parameters = model.parameters + extra
    return replace(model, parameters=parameters, values=(0.0,) * len(parameters), covariance=_diagonal(parameters), jobs=tuple(jobs))


def _diagonal(parameters: Sequence[NetworkParameter]) -> tuple[tuple[float, ...], ...]:
    """Return the covariance of the priors."""
    return tuple(tuple(one.width**2 if row == column else 0.0 for column in range(len(parameters))) for row, one in enumerate(parameters))


def _thinned(rows: Sequence[RunQuestion]) -> Sequence[RunQuestion]:
    step = -(-len(rows) // MOST_ROWS) or 1
    return rows[::step]
