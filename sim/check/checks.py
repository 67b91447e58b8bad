"""Does one description make sense as a whole? Small checks run in order, and each yields keys with sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sim.check.fabric import check_fabric
from sim.check.ranges import out_of_bounds
from sim.check.topology import Problem, check_topology
from sim.spec import memo
from sim.spec.catalog import suggestions
from sim.spec.days import first_day
from sim.spec.fields import Key, Spec
from sim.spec.hardware import Hardware
from sim.spec.model import Model, batch_norms, count_parameters
from sim.spec.references import IMPLIED
from sim.spec.schema import FOLDERS
from sim.spec.sections import blocks, file_fields
from sim.spec.workload import Jobs, Workload
from sim.spec.yaml import Document, Mark, SpecError
from sim.training.sequences import attentions

Check = Callable[[Spec], Iterator[Problem]]


def check_hardware(hardware: Hardware, document: Document | None = None) -> list[str]:
    """Return what is wrong with *hardware*, with file, line and column if its *document* is given."""
    problems = [*_single_blocks(hardware), *_groups(hardware), *_graphs(hardware), *_rates(hardware), *_dates(hardware)]
    return located_messages([*problems, *check_fabric(hardware)], document)


def check_workload(workload: Workload, document: Document | None = None) -> list[str]:
    """Return what is wrong with *workload*, with file, line and column if its *document* is given."""
    idle = [problem for problem in _ineffective_fields(workload) if not _from_stack(problem[0], (), document)]
    return located_messages(_narrowest([*_single_blocks(workload)], [*_training(workload), *idle]), document)


def check_part(part: Spec, document: Document | None = None) -> list[str]:
    """Return what is wrong with one part, such as a GPU or a stack."""
    return located_messages([*out_of_bounds(part), *_sources(part)], document)


def check_jobs(jobs: Jobs, document: Document | None = None) -> list[str]:
    """Return what is wrong with a file of several jobs, with file, line and column if its *document* is given."""
    problems: list[Problem] = []
    for number, entry in enumerate(jobs.jobs):
        place = ("jobs", number, "workload")
        problems_of_job = [((*place, *key), text) for key, text in (*_training(entry.workload), *_ineffective_fields(entry.workload))]
        problems += [problem for problem in problems_of_job if not _from_stack(problem[0], place, document)]
        if entry.gpus and entry.placement is not None:
            problems.append((("jobs", number, "gpus"), "cannot be combined with 'placement'; write one of the two"))
    return located_messages(_narrowest([*out_of_bounds(jobs), *_sources(jobs)], problems), document)


def _narrowest(general: list[Problem], own: list[Problem]) -> list[Problem]:
    """Return the *general* problems and the *own* ones. If a number violates both limits, report only the specific, stricter one."""
    keys = {key for key, _ in own}
    return [*(problem for problem in general if problem[0] not in keys), *own]


def require(problems: list[str]) -> None:
    """Raise SpecError listing all *problems*, if there are any."""
    if problems:
        raise SpecError(problems)


def located_messages(problems: list[Problem], document: Document | None) -> list[str]:
    """Return *problems* as sentences with their place in the file, in the order of the file."""
    document = document or Document(None, Mark(""), IMPLIED)
    texts = []
    for key, text in problems:
        mark = document.mark(key)
        start = document.message_start(key) if mark.file else f"{document.spell(key)}: "
        texts.append(((mark.file, mark.line, mark.column), start + text))
    return [text for _, text in sorted(texts, key=lambda pair: pair[0])]


def _single_blocks(spec: Spec) -> Iterator[Problem]:
    """Check each block in isolation; a part that was found valid before is not checked again while results are cached."""
    skip = _is_valid_part if memo.is_open() else lambda _: False
    yield from out_of_bounds(spec, skip)
    yield from _sources(spec, skip)


def _is_valid_part(block: Spec) -> bool:
    """Return whether *block* is a part without problems."""
    if type(block) not in FOLDERS:
        return False
    return memo.get_or_make((_is_valid_part, id(block)), lambda: not [*_single_blocks(block)], block)


def _sources(spec: Spec, skip: Callable[[Spec], bool] = lambda _: False) -> Iterator[Problem]:
    """Check that a block's sources by key name keys of the block."""
    for key, block in blocks(spec, skip=skip):
        source = getattr(block, "source", None)
        for name in source if isinstance(source, dict) else ():
            fields = [field for field in file_fields(type(block)) if field != "source"]
            if name != "*" and name.partition(".")[0] not in fields:
                similar = suggestions(name, fields, most=1)
                hint = f"did you mean '{similar[0]}'?" if similar else "write a key of the block, or '*' for the rest"
                yield (*key, "source", name), f"is not a key of this block; {hint}"


def _groups(hardware: Hardware) -> Iterator[Problem]:
    if not any(group.node.gpu_count for group in hardware.groups if group.role == "worker"):
        yield ("groups", 0, "node", "gpu_count"), "no worker has a GPU; write at least 1 in one group of role worker"


def _graphs(hardware: Hardware) -> Iterator[Problem]:
    for index, group in enumerate(hardware.groups):
        start: Key = ("groups", index, "node", "topology")
        for key, text in check_topology(group.node):
            yield (*start, *key), text


def _rates(hardware: Hardware) -> Iterator[Problem]:
    """Check that a volume's limits are consistent: upper limits above lower ones, credits with bursts."""
    for index, group in enumerate(hardware.groups):
        volume = group.node.storage.volume if group.node.storage else None
        start: Key = ("groups", index, "node", "storage", "volume")
        if volume and volume.max_iops < volume.baseline_iops:
            yield (*start, "max_iops"), f"{volume.max_iops:g} is below baseline_iops ({volume.baseline_iops:g}); write at least that"
        if volume and volume.burst_iops and not volume.burst_credits:
            yield (
                (*start, "burst_credits"),
                ("is missing or zero although burst_iops is set; write the number of operations in a full credit bucket"),
            )


def dates_of_prices(hardware: Hardware) -> Iterator[tuple[Key, str]]:
    """Yield each date of a price of *hardware*, with its key."""
    for index, price in ((index, group.price) for index, group in enumerate(hardware.groups) if group.price):
        key = ("groups", index, "price")
        for block, names in ((price, key), (price.cheapest, (*key, "cheapest"))):
            dates = {"date": block.date, "spot_date": block.spot_date} if block else {}
            yield from (((*names, name), written) for name, written in dates.items() if written)


def _dates(hardware: Hardware) -> Iterator[Problem]:
    for key, written in dates_of_prices(hardware):
        try:
            first_day(written)
        except SpecError:
            yield key, f"'{written}' is not a date; write for example 2026-07-20 or 2026-07"


def _narrow_type(model: Model) -> str:
    """Return the 16-bit type of all gradients of *model*; empty if they have other types or several."""
    types = {dtype for layer in model.layers if layer.gradients for dtype in layer.dtypes or ("fp32",)}
    return types.pop() if len(types) == 1 and types <= {"fp16", "bf16"} else ""


def _training(workload: Workload) -> Iterator[Problem]:
    model, dataset, training = workload.model, workload.dataset, workload.training
    if model.measured is None and not any(layer.forward or layer.read or layer.write for layer in model.layers):
        yield ("model", "layers"), "no layer has FLOP or bytes; add them, or generate the table with 'python -m sim extract'"
    if not any(layer.gradients for layer in model.layers):
        if model.frozen:
            yield ("model", "frozen"), "all layers are frozen, so there is nothing to train; leave out those that train"
        else:
            yield (
                ("model", "layers"),
                "no layer has gradients, so there is nothing to train; write the number of elements of each gradient tensor",
            )
    elif (total := count_parameters(model)) != model.parameters:
        yield (
            ("model", "parameters"),
            f"{model.parameters} differs from {total}, the sum of the layers' gradients, frozen tensors and 'unused'; write parameters: "
            f"{total}"
            + (
                f", or unused: {model.unused + model.parameters - total} for parameters that no layer uses"
                if total < model.parameters
                else ""
            ),
        )
    if training.precision in ("fp32", "tf32") and (narrow := _narrow_type(model)):
        yield (
            ("training", "precision"),
            f"{training.precision}, but the model's code creates {narrow} parameters and therefore computes in {narrow}; write {narrow}",
        )
    if training.stack.unpadded and dataset.lengths is None:
        yield (
            ("training", "stack", "unpadded"),
            f"the sequence lengths of {dataset.name} are not specified; write dataset.lengths={{mean: ..., square: ..., source: ...}} as "
            "fractions of the longest, or leave unpadded out",
        )
    if training.stack.length_imbalance != 1.0 and not training.stack.unpadded and workload.model.padding != "unpadded":
        yield ("training", "stack", "length_imbalance"), "padded sequences all have the same length; leave it out, or write unpadded: true"
    if training.batch > dataset.samples:
        yield ("training", "batch"), f"{training.batch} samples per GPU exceed the {dataset.samples} of the data set; write at most that"


def _ineffective_fields(workload: Workload) -> Iterator[Problem]:
    """Find fields of the stack that have no effect for the model; a problem only if they were set for this model (`_from_stack`)."""
    model, training = workload.model, workload.training
    if training.stack.exchange.sparse_embeddings and not any(layer.rows_per_sample for layer in model.layers):
        yield (
            ("training", "stack", "sparse_embeddings"),
            f"{model.name} has no layer with rows and rows_per_sample, so no gradient can be exchanged by rows; write both for its "
            "embeddings, or leave sparse_embeddings out",
        )
    if training.stack.exchange.sync_batch_norm and not batch_norms(model):
        yield ("training", "stack", "sync_batch_norm"), f"{model.name} has no BatchNorm layers to synchronize; leave it out"
    has_attention = attentions(model.layers) or any(layer.attention for layer in model.layers)
    if training.stack.kernels.score_passes is not None and not has_attention:
        yield (
            ("training", "stack", "score_passes"),
            f"{model.name} has no attention that one kernel could fuse (no layer of it, nor two products around a softmax); leave it out",
        )


def _from_stack(key: Key, workload: Key, document: Document | None) -> bool:
    """Return whether the value at *key* comes from the stack that *workload* names, not from the workload's own file or an option."""
    if document is None or key[: len(workload) + 2] != (*workload, "training", "stack"):
        return False
    mark, named = document.mark(key), document.mark((*workload, "training"))
    return mark.line > 0 and mark.file not in (document.root.file, named.file)
