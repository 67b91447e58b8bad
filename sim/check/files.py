"""Are these files valid? Determines the kind of each file, validates it, and checks across the catalog, as `sim check` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sim.check.checks import check_hardware, check_jobs, check_part, check_workload, dates_of_prices
from sim.check.estimates import Estimate, count_estimates
from sim.check.price_copies import copied_prices
from sim.check.usual import unusual_values
from sim.spec import catalog, library, schema
from sim.spec.days import is_future, today
from sim.spec.fields import Spec
from sim.spec.hardware import Hardware, Node
from sim.spec.workload import Jobs, Workload
from sim.spec.yaml import Document, SpecError
from sim.units import any_of, shorten


@dataclass(frozen=True)
class Verdict:
    """What `sim check` finds in one file."""

    file: str
    kind: str
    """``hardware``, ``workload``, ``gpu`` ...; empty if it cannot be determined."""
    problems: list[str]
    estimates: list[Estimate] = field(default_factory=list)
    spec: Any = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list)
    """What is assumed about the file, such as a price copied from another machine."""


def validate(names: Iterable[str] = (), progress: Callable[[int, int], None] = lambda done, of: None) -> list[Verdict]:
    """Return a verdict on each of *names* (files, folders of files or catalog names), or on the whole catalog if there are none.

    *progress* is called with the number of files that are done and their total.

    For the catalog, every file has only its own estimates, not those of its parts; the last verdict has no file and holds problems
    between files.
    """
    paths = [file for name in names for file in _files(name)]
    if paths:
        return list(_with_progress(map(_verdict_on_name, paths), len(paths), progress))
    files = [(path, kind) for kind, folder in _folders() for path in catalog.all_files(folder).values()]
    verdicts = list(_with_progress((_own_estimates(_verdict(path, kind)) for path, kind in files), len(files), progress))
    return [*verdicts, Verdict("", "catalog", _problems_across(verdicts))]


def validate_path(name: str) -> list[str]:
    """Return all problems of the file *name* (path or catalog name), each with its place."""
    return _verdict_on_name(name).problems


def kind_of(name: str) -> str:
    """Return the kind of description that *name* (path or catalog name) refers to; empty if it cannot be determined."""
    try:
        path, kind = _locate(name)
        return (kind or _kind_by_folder(path) or _kind_by_keys(path)).__name__.lower()
    except SpecError:
        return ""


def _with_progress(verdicts: Iterable[Verdict], total: int, progress: Callable[[int, int], None]) -> Iterator[Verdict]:
    for done, verdict in enumerate(verdicts, 1):
        progress(done, total)
        yield verdict


def _files(name: str) -> list[str]:
    """Return the YAML files below *name* if it is a folder that has some; else *name* itself."""
    try:
        in_catalog = not name or any(name in catalog.all_files(folder) for _, folder in _folders())
        below = [] if in_catalog else sorted(str(path) for path in Path(name).rglob("*.yaml"))
    except (OSError, ValueError):  # not a name that a file system can hold
        below = []
    return below or [name]


def _folders() -> list[tuple[type[Any], str]]:
    return [(kind, folder) for kind, folder in schema.FOLDERS.items() if kind is not Node]


def _verdict_on_name(name: str) -> Verdict:
    try:
        path, kind = _locate(name)
    except SpecError as error:
        return Verdict(name, "", error.problems)
    return _verdict(path, kind)


def _locate(name: str) -> tuple[Path, type[Any] | None]:
    """Return the file that *name* refers to, and its kind if its folder in the catalog determines it."""
    for kind, folder in _folders():
        for spelling in (name, name.lower()):
            if (path := catalog.all_files(folder).get(spelling)) is not None:
                return path, kind
    try:
        return catalog.locate(name, "hardware"), None
    except SpecError:
        if catalog.suggestions(name, list(catalog.catalog("hardware"))):
            raise  # the error suggests machines with similar names
    try:
        return catalog.locate(name, "workloads"), None
    except SpecError as error:
        if catalog.command_that_lists("workloads") not in str(error):
            raise  # the error suggests workloads with similar names, or says what is at the path
        raise SpecError(
            f"{catalog.shown(name)}: no such file or catalog name; 'python -m sim list' shows all hardware and workloads"
        ) from None


def _verdict(path: Path, kind: type[Any] | None) -> Verdict:
    """Read and check *path*, as a *kind* if given, else as the kind that its folder or its keys indicate."""
    try:
        in_catalog = kind is not None
        kind = kind or _kind_by_folder(path) or _kind_by_keys(path)
        loaded = library.load(kind, path)
    except SpecError as error:
        return Verdict(str(path), kind.__name__.lower() if kind else "", error.problems)
    problems = _check_spec(loaded.spec, loaded.document)
    notes = [*copied_prices(loaded.spec), *_early_prices(loaded.spec)] if isinstance(loaded.spec, Hardware) else []
    if not in_catalog and not problems:
        notes += unusual_values(loaded.spec, loaded.document, path)
    return Verdict(str(path), kind.__name__.lower(), problems, count_estimates(loaded.spec, loaded.document), loaded.spec, notes)


def _own_estimates(verdict: Verdict) -> Verdict:
    return replace(verdict, estimates=[estimate for estimate in verdict.estimates if estimate.file == verdict.file])


def _check_spec(spec: Spec, document: Document) -> list[str]:
    if isinstance(spec, Hardware):
        return check_hardware(spec, document)
    if isinstance(spec, Workload):
        return check_workload(spec, document)
    if isinstance(spec, Jobs):
        return check_jobs(spec, document)
    return check_part(spec, document)


def _early_prices(hardware: Hardware) -> Iterator[str]:
    """Return a sentence on each price with a date after today. As in a run it is marked, not an error: the clock may be wrong."""
    for key, written in dates_of_prices(hardware):
        with suppress(SpecError):  # `check_hardware` reports what is not a date
            if is_future(written):
                yield f"{'.'.join(map(str, key[2:]))}: {written} is after today ({today()}); write the day of the price"


def _kind_by_folder(path: Path) -> type[Any] | None:
    folder = path.resolve().parent.as_posix()
    return next((kind for kind, name in _folders() if "/" in name and folder.endswith("/" + name)), None)


def _kind_by_keys(path: Path) -> type[Any]:
    document = catalog.read(path)
    value = document.value
    kind = (schema.kind_of(value) or _kind_of_origin(value, path)) if isinstance(value, dict) else None
    if kind is None:
        raise SpecError(_unlike(path, document))
    return kind


def _unlike(path: Path, document: Document) -> str:
    """Return why *document* matches no kind of description: a key is misspelled, what it extends is missing, or all keys are unknown."""
    value = document.value
    keys = [str(key) for key in value] if isinstance(value, dict) else []
    valid = sorted({key for kind in (Hardware, Workload) for key in (*kind.model_fields, *schema.UNFOLDED)})
    misspelled = {key: near_names[0] for key in keys if key not in valid and (near_names := catalog.suggestions(key, valid, most=1))}
    if misspelled:
        return "; ".join(f"{document.mark((key,))}: unknown key '{key}'; did you mean '{meant}'?" for key, meant in misspelled.items())
    if isinstance(value, dict) and (origin := value.get("extends")):
        if catalog.is_path(str(origin)):
            return f"{document.message_start(('extends',))}{shorten(origin)}: no such file"
        names = [*catalog.catalog("hardware"), *catalog.catalog("workloads")]
        measured = [file.stem for file in catalog.MEASURED.glob("*.yaml")]
        similar = catalog.suggestions(str(origin), names) or catalog.suggestions(str(origin), measured)
        meant = catalog.named_beside(str(origin), path) or (f"; did you mean {any_of(similar)}?" if similar else "")
        return f"{document.message_start(('extends',))}{shorten(origin)} is not in the catalog{meant}"
    return f"{path}: unknown kind of description; a file can hold a {', '.join(schema.KINDS)}"


def _kind_of_origin(value: Mapping[str, Any], path: Path) -> type[Any] | None:
    """Return the kind of the description that *value* extends: the hardware or workload of that name; None if there is none."""
    for kind, folder in ((Hardware, "hardware"), (Workload, "workloads")):
        with suppress(SpecError):
            catalog.locate(str(value.get("extends", "")), folder, written_in=path)
            return kind
    return None


def _problems_across(verdicts: list[Verdict]) -> list[str]:
    """Return problems between files: a name or alias that two files share, and a name that differs from its file's."""
    problems = []
    for kind in ("hardware", "workload"):
        owner: dict[str, str] = {}
        for verdict in verdicts:
            if verdict.kind != kind or verdict.spec is None:
                continue
            stem = Path(verdict.file).stem
            if verdict.spec.name.lower() != stem.lower():
                problems.append(f"{verdict.file}: name: '{verdict.spec.name}' differs from the file name; write {stem}")
            for name in (stem, *verdict.spec.aliases):
                if (other := owner.setdefault(name.lower(), verdict.file)) != verdict.file:
                    problems.append(f"{verdict.file}: '{name}' is also a name of {other}; choose another")
    return problems
