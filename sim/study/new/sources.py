"""Which settings does a source of a new workload have? It is identified by its content: a file, a folder, a name, or a command line.

A model's ``config.json``, launch files of other programs, the name of a model on the hub or of a decoder of the catalog.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from sim.spec import yaml
from sim.spec.catalog import UnknownName, is_file, is_folder, locate
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.foreign.launch_deepspeed import deepspeed, is_deepspeed
from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_scripts import launch_script
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.library import load_workload
from sim.spec.strict import parse_toml
from sim.spec.yaml import SpecError, require_regular
from sim.study.new.named_files import accelerate_file, json_of, text_of, with_inserted_files, with_named_files
from sim.units import shorten

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SUFFIXES: Final = frozenset((".json", ".toml", ".yaml", ".yml", ".sh", ".sbatch", ".slurm", ".txt", ".args", ".py", ".pt", ".pth"))
"""Extensions of files that this or other commands read; names on the hub contain dots too, such as Llama-3.1-8B."""


def read_source(source: str, others: Collection[str]) -> tuple[str, LaunchSettings]:
    """Return the name of *source* for messages, and what it specifies, with the files that it names, except *others*."""
    if is_command_line(source):
        return _LINE, _launch(source, _LINE, Path(), others)
    path = Path(source)
    if is_folder(path):
        path = path / "config.json"
        if not path.is_file():
            raise SpecError(f"{source}: no config.json in this folder; write the path of one file")
    if not is_file(path):
        if _HUB_ID.fullmatch(source) and path.suffix.lower() not in _SUFFIXES:
            return source, _of_hub(source)
        if "/" not in source and path.suffix.lower() not in _SUFFIXES and _is_known(source):
            return source, LaunchSettings(model=decoder_model(source))
        require_regular(path)
        named = "" if "/" in source or path.suffix.lower() in _SUFFIXES else ", and no catalog model"
        raise SpecError(f"{source[:80]}: no such file or folder{named}")
    return str(path), _told_by_file(path, text_of(path), others)


def _of_hub(name: str) -> LaunchSettings:
    """Return the model *name* of the hub, or if the hub cannot be read, the catalog's model of that name."""
    try:
        text = _from_hub(name)
    except SpecError:
        if not _is_known(name):
            raise
        model = decoder_model(name)
        return LaunchSettings(model=model, notes=[f"{name} cannot be read from the hub: used {model} of the catalog"])
    return _configuration(json_of(text, name), name)


def _is_known(name: str) -> bool:
    """Return whether the catalog has a workload of this *name*."""
    try:
        locate(name, "workloads")
    except SpecError:
        return False
    return True


_ARGUMENTS: Final = re.compile(
    r"--(num[-_]layers|(tensor|pipeline|expert)-model-parallel-size|context-parallel-size|micro-batch-size|global-batch-size)\b"
)
"""Identifies arguments of Megatron-LM."""
_LAUNCHER: Final = re.compile(
    r"^#SBATCH|\b(torchrun|torch\.distributed\.(run|launch)|accelerate(\s+launch|\.commands\.launch)|deepspeed)\b"
    r"|--per[-_]device[-_]train|--model[-_]name[-_]or[-_]path\b",
    re.MULTILINE,
)
"""Identifies other scripts that start training."""
_PROGRAMS: Final = frozenset((
    "python", "python3", "mpirun", "mpiexec", "srun", "sbatch", "salloc", "bash", "sh", "ray", "horovodrun", "composer", "colossalai", "uv",
))  # fmt: skip
"""Programs that may start a job, with a command line that is not a path."""
_LINE: Final = "the command line"
"""How messages and the written file name a command line that is given in place of a file."""


def is_command_line(source: str) -> bool:
    """Return whether *source* is itself the command line that starts a job, such as ``torchrun --nnodes 2 train.py``.

    Raise SpecError for a command line without a launcher that is read.
    """
    if " " not in source.strip() or is_file(Path(source)):
        return False
    if _ARGUMENTS.search(source) or _LAUNCHER.search(source):
        return True
    program, *rest = source.split()
    if Path(program).name in _PROGRAMS or any(word.startswith("--") or word.endswith((".py", ".sh")) for word in rest):
        script = next((word for word in rest if word.endswith((".sh", ".sbatch", ".slurm"))), "")
        raise SpecError(
            f"{shorten(source)}: a command line is read if it has torchrun, python -m torch.distributed.run, accelerate launch or "
            "deepspeed, or options of Megatron-LM or of transformers' Trainer; "
            + (
                f"pass the script itself, {script}"
                if script
                else "for others, pass the model's config.json, and set --gpus in the next command"
            )
        )
    return False


_OF_TORCH: Final = {
    ".py": "name the callable that returns the torch model, and its input, such as {stem}.py:Net --input 3x224x224",
    **dict.fromkeys((".pt", ".pth"), "contains weights; name the code that builds the model, such as net.py:Net --input 3x224x224"),
}
"""What to do with files related to torch, by extension."""


def _told_by_file(path: Path, text: str, others: Collection[str]) -> LaunchSettings:
    place, suffix = str(path), path.suffix.lower()
    if suffix == ".json":
        return _configuration(json_of(text, place), place)
    if suffix == ".toml":
        return torchtitan(parse_toml(text, place), place)
    if _ARGUMENTS.search(text):
        return _launch(text, place, path.parent, others)
    if suffix in (".yaml", ".yml"):
        content = yaml.parse(text, place).value
        if isinstance(content, Mapping) and "layers" in content:
            raise SpecError(
                f"{place}: is a layer table; name it in a workload, such as '{{name: my-job, model: {place}, dataset: "
                "{extends: imagenet-1k, samples: 20000}, training: {batch: 16, precision: amp_bf16, optimizer: {name: adam}}}'"
            )
        if isinstance(content, Mapping) and "model" in content:
            raise SpecError(f"{place}: is already a workload; run it: python -m sim run HW {shlex.quote(place)}")
        if isinstance(content, Mapping):
            return accelerate_file(path, others)
    if suffix in _OF_TORCH:
        raise SpecError(f"{place}: {_OF_TORCH[suffix].format(stem=place.removesuffix('.py'))}")
    if _LAUNCHER.search(text):
        return _launch(text, place, path.parent, others)
    if not text.strip():
        raise SpecError(f"{place}: is empty; write a model's config.json, or the command that starts training, such as 'torchrun train.py'")
    raise SpecError(
        f"{place}: is not a config.json, Megatron-LM arguments (--num-layers ...), a Slurm or torchrun script, a torchtitan TOML, "
        "a DeepSpeed JSON or an Accelerate YAML"
    )


def _launch(text: str, place: str, folder: Path, others: Collection[str]) -> LaunchSettings:
    """Return what the script or command line *text* in *folder* specifies. Raise SpecError if that is nothing."""
    text, notes = with_inserted_files(text, place, folder, others)
    told = launch_script(text, place)
    if _ARGUMENTS.search(text):
        told = told.joined(megatron(text, place))
    told.notes += notes
    told = with_named_files(told, text, place, folder, others)
    if told == LaunchSettings():
        raise SpecError(
            f"{place}: specifies no number of GPUs, model size or layout (--tensor-model-parallel-size ...); pass only the model's "
            "config.json, and the nodes to 'python -m sim run' as --nodes"
        )
    return told


def _configuration(config: Mapping[str, Any], place: str) -> LaunchSettings:
    if is_deepspeed(config):
        return deepspeed(config, place)
    decoder = decoder_of(config, place)
    return LaunchSettings(shape=decoder.shape, notes=list(decoder.notes), keys=decoder.keys)


def _from_hub(name: str) -> str:
    """Return the ``config.json`` of the model *name* on the Hugging Face hub."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise SpecError(
            f"{name}: no such file or folder; to look it up on the hub, pip install huggingface_hub, or download the model's config.json"
        ) from None
    try:
        return text_of(Path(hf_hub_download(name, "config.json")))
    except SpecError:
        raise
    except Exception as error:  # the library's own errors, and those of its HTTP client
        raise SpecError(f"{name}: {_refused(type(error).__name__)}; or download its config.json and pass the file") from None


def _refused(error: str) -> str:
    """Return what an *error* of this name from the hub's library means."""
    if error == "GatedRepoError":
        return "the model is gated: accept its terms on the hub and log in with 'hf auth login'"
    if error in ("RepositoryNotFoundError", "EntryNotFoundError", "RemoteEntryNotFoundError"):
        return "the hub has no such model, or it is private"
    return f"the hub does not respond ({error})"


def decoder_model(name: str) -> str:
    """Return the name of the catalog's decoder *name*. Raise SpecError if there is none."""
    try:
        workload = load_workload(name).spec
    except UnknownName:
        raise SpecError(f"{name}: no such model in the catalog; add --from with its config.json") from None
    if workload.model.transformer is None:
        raise SpecError(
            f"{name}: is not a decoder, but another workload of the catalog; run it: python -m sim run HW {name}, or change it in a file "
            f"of your own, with a line 'extends: {name}'"
        )
    return workload.model.name
