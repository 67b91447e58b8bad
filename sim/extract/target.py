"""Which model and which inputs did the user name? ``module:callable`` or ``file.py:callable``, and ``[NAME=]SHAPE[:TYPE]``.

An input is written without its batch dimension, which comes first: ``3x224x224`` is a float32 image, ``input_ids=384:int64`` a named
row of token numbers, ``user=scalar:int64`` one number per sample. If the batch comes later, ``B`` marks its place: ``50xBx1024``.
If shapes are not sufficient, ``@module:callable`` names a function that takes the batch size and returns the inputs, a tuple or a dict of
tensors. Importing a target runs the user's code.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sim.spec import scalars
from sim.spec.catalog import roots
from sim.spec.yaml import SpecError
from sim.units import pluralized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MOST_DEFINED: Final = 8
"""Maximum number of a file's callables that a message lists: those nearest to the one that is missing, or the last ones, because they are
built from earlier ones."""


class InputShape(NamedTuple):
    """One input tensor; *name* is empty for a positional input; the batch dimension comes after the sizes *before*."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    dtype: str

    def sizes(self, batch: int) -> tuple[int, ...]:
        """Return the shape for *batch* samples."""
        return (*self.before, batch, *self.after)


_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<sizes>(?:[1-9]\d*|B)(?:x(?:[1-9]\d*|B))*|scalar)(?::(?P<dtype>[A-Za-z]\w*))?")


def parse_input(text: str) -> InputShape:
    """Return the input described by ``[NAME=]SHAPE[:TYPE]``. Raise SpecError for any other text."""
    match = _INPUT.fullmatch(text.strip())
    words = match["sizes"].split("x") if match else []
    if match is None or words.count("B") > 1:
        raise SpecError(f"--input {text}: write [NAME=]SHAPE[:TYPE] without the batch, for example 3x224x224 or input_ids=384:int64")
    split = words.index("B") if "B" in words else 0
    sizes = [int(word) for word in words if word not in ("B", "scalar")]
    return InputShape(match["name"] or "", tuple(sizes[:split]), tuple(sizes[split:]), match["dtype"] or "float32")


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the keyword arguments in ``KEY=VALUE`` texts; a value is parsed like a plain scalar in YAML."""
    result: dict[str, Any] = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise SpecError(f"--arg {text}: write KEY=VALUE, for example num_classes=10")
        try:
            result[key] = scalars.plain(value)
        except scalars.ScalarError as error:
            raise SpecError(f"--arg {text}: {error}") from None
    return result


_WORKLOAD: Final = "to turn a decoder's configuration into a workload: python -m sim new workload {file} -o mine.yaml"
_DESCRIBED: Final = "a layer table or a workload runs directly: python -m sim run p4d.24xlarge {file}"
_NO_CODE: Final = {".json": _WORKLOAD, ".toml": _WORKLOAD, ".yaml": _DESCRIBED, ".yml": _DESCRIBED}
"""Advice for files that are mistaken for code, by suffix."""


def check_code(target: str) -> None:
    """Raise SpecError if *target* is a file without code."""
    if (ending := Path(target).suffix.lower()) in _NO_CODE:
        raise SpecError(f"{target}: is not a Python file; {_NO_CODE[ending].format(file=shlex.quote(target))}")


def check_target(target: str) -> None:
    """Raise SpecError if *target* cannot name a callable, or names a missing file; runs before torch is imported."""
    module_name, colon, name = target.rpartition(":")
    file = Path(target.removesuffix(":"))
    if file.suffix == ".py" and (defined := _defined(file)):
        raise SpecError(f"{file}: name the callable that returns the model, such as {file}:{defined[-1]}; it has {_listed(defined)}")
    if not colon or not module_name or not name:
        hub = f"; for a decoder of the Hugging Face hub, use 'python -m sim new workload {target}'"
        example = f"for example torchvision.models:vgg16{hub if '/' in target else ''}"
        raise SpecError(f"{target}: write module:callable or file.py:callable, {example}")
    if module_name.endswith(".py") and not _file(module_name).is_file():
        raise SpecError(f"{module_name}: {'is a folder; expected a Python file' if Path(module_name).is_dir() else 'no such file'}")


def _file(name: str) -> Path:
    """Return the Python file *name* in the working folder, or else in the catalog (``workloads/models/sources/gpt.py``)."""
    places = (Path(name), *(root / name for root in roots()))
    return next((path for path in places if path.is_file()), Path(name))


def _defined(file: Path) -> list[str]:
    """Return the public classes and functions that the Python *file* defines, without running it; none if it cannot be read."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    return [item.name for item in body if isinstance(item, ast.ClassDef | ast.FunctionDef) and not item.name.startswith("_")]


def _listed(defined: Sequence[str], meant: str = "") -> str:
    """Return the names *defined*; of many, those that resemble *meant* most or, without it, the last, and how many others there are."""
    others = len(defined) - MOST_DEFINED
    if others <= 0:
        return ", ".join(defined)
    nearest = sorted(defined, key=lambda name: difflib.SequenceMatcher(None, name.lower(), meant.lower()).ratio(), reverse=True)
    shown = nearest[:MOST_DEFINED] if meant else defined[-MOST_DEFINED:]
    return f"{', '.join(shown)} and {pluralized(others, 'other')}"


def load_target(target: str) -> Callable[..., Any]:
    """Return the callable that *target* names; importing it runs the code of its module."""
    check_target(target)
    module_name, _, name = target.rpartition(":")
    value: Any = _module(target, module_name)
    for part in name.split("."):
        if not hasattr(value, part):
            if (models := sys.modules.get(f"{module_name}.models")) is not None and hasattr(models, part):
                raise SpecError(f"{target}: {module_name} has no '{part}'; write {module_name}.models:{name}")
            near = difflib.get_close_matches(part, dir(value), n=1)
            defined = _defined(_file(module_name)) if module_name.endswith(".py") else []
            has = f"; did you mean '{near[0]}'?" if near else f"; it has {_listed(defined, part)}" if defined else ""
            raise SpecError(f"{target}: {module_name} has no '{part}'{has}")
        value = getattr(value, part)
    if hasattr(value, "forward") and not isinstance(value, type):
        kind = type(value).__name__
        raise SpecError(
            f"{target}: is a model, not code that builds it; name its class, such as {module_name}:{kind}, or a function that returns it"
        )
    if not callable(value):
        raise SpecError(f"{target}: expected a function or class that returns the model, not {type(value).__name__}")
    result: Callable[..., Any] = value
    return result


def _module(target: str, name: str) -> ModuleType:
    try:
        with importable(target):
            return _from_file(_file(name)) if name.endswith(".py") else importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise SpecError(f"{target}: there is no module '{error.name}'; install it, or write file.py:callable") from None
        missing = f"needs the module '{error.name}', which is not installed" if error.name else f"failed: {error_line(error)}"
        raise SpecError(f"{target}: importing {name} {missing}") from None
    except FileNotFoundError:
        raise SpecError(f"{target}: {name}: no such file") from None
    except (Exception, SystemExit) as error:
        hint = "; relative imports need an __init__.py next to the file" if "relative import" in str(error) else ""
        raise SpecError(f"{target}: importing {name} failed: {error_line(error)}{hint}") from error


@contextmanager
def importable(target: str) -> Iterator[None]:
    """Make modules importable from the working folder, as with ``python -m``, and from the folder of a *target* file, as in a script."""
    file = _file(target.rpartition(":")[0])
    folders = [str(Path.cwd()), *([str(file.resolve().parent)] if file.suffix == ".py" else [])]
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)


def _from_file(path: Path) -> ModuleType:
    package = _package(path.resolve())
    if package and path.is_file():  # relative imports need the enclosing packages
        root, name = package
        sys.path.insert(0, str(root))
        try:
            module = importlib.import_module(name)
        finally:
            sys.path.remove(str(root))
        if getattr(module, "__file__", None) == str(path.resolve()):
            return module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickling look the module up by name
    spec.loader.exec_module(module)
    return module


def _package(path: Path) -> tuple[Path, str] | None:
    """Return the folder that contains the outermost package of the file *path*, and its module name; None if it is not in a package."""
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return (folder, ".".join(names)) if len(names) > 1 else None


def error_line(error: BaseException) -> str:
    """Return an exception of the user's code as one line, with the location of its innermost frame outside torch and this package."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__
    place = _place(error)
    return f"{text} (at {place})" if place else text


def _place(error: BaseException) -> str:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not re.search(r"[\\/](torch|importlib)[\\/]|[\\/]sim[\\/]extract[\\/]|<frozen", file):
            frames.append(f"{file}:{trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-1] if frames else ""


def check_inputs(forward: Callable[..., Any], shapes: Sequence[InputShape]) -> None:
    """Raise SpecError if *forward* needs an input that *shapes* lack, does not accept one of them, or if a name appears twice."""
    named = [shape.name for shape in shapes if shape.name]
    if twice := next((name for name in named if named.count(name) > 1), None):
        raise SpecError(f"--input {twice}: appears twice")
    signature = inspect.signature(forward)
    positional = [None for shape in shapes if not shape.name]
    try:
        signature.bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        takes = f"forward({', '.join(signature.parameters)})"
        raise SpecError(f"the model's {takes} does not fit the inputs: {error}; write --input NAME=SHAPE[:TYPE] for each") from None
