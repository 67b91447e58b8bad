"""Which configuration files does a launch command name, and what do they change? DeepSpeed's JSON, Accelerate's YAML, torchtitan's TOML.

Paths are relative to the folder of the script, or else to the current one. DeepSpeed's engine reads its file only, so the file wins over
the command (transformers' Trainer refuses different values: src/transformers/integrations/deepspeed.py, trainer_config_finalize), and
``auto`` takes the Trainer's option. Options of ``accelerate launch`` and of the program win over Accelerate's file. Differences are noted.
torchtitan's options, such as ``--training.seq_len``, replace keys of its file (torchtitan/config/manager.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sim.spec import yaml
from sim.spec.foreign.launch_accelerate import accelerate, accelerate_options
from sim.spec.foreign.launch_deepspeed import deepspeed
from sim.spec.foreign.launch_megatron import NUMERIC
from sim.spec.foreign.launch_options import arguments
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.foreign.launch_trainer import is_set
from sim.spec.strict import parse_json, parse_toml
from sim.spec.yaml import SpecError
from sim.units import shorten

_MOST: Final = 2**20
"""Maximum bytes of a file that is read."""
_DEEPSPEED: Final = ("deepspeed", "deepspeed-config", "deepspeed-config-file")
"""Options of transformers' Trainer, of ``deepspeed.add_config_arguments``, and of ``accelerate launch``."""
_TORCHTITAN: Final = "job.config-file"
_ACCELERATE: Final = re.compile(r"\baccelerate(\s+launch|\.commands\.launch)\b")
_PROGRAM: Final = re.compile(r"\S+\.py\b|\s(-m|--module)\s")
"""The program that a launcher starts, whose own options follow."""
_INSERTED: Final = re.compile(r"\"?\$\((?:cat[ \t]+|<[ \t]*)[\"']?([^\s\"'()|;]+)[\"']?[ \t]*\)\"?|`cat[ \t]+([^\s`|;]+)[ \t]*`")
"""The shell's ways to insert the text of a file into a command."""
_BATCHES: Final = ("per-device-train-batch-size", "micro-batch-size")


def text_of(path: Path) -> str:
    """Return the text of a configuration file. Raise SpecError if it is too large or no text."""
    return yaml.text_of(path, _MOST, "a configuration file is smaller", "a config.json")


def json_of(text: str, place: str) -> Mapping[str, Any]:
    """Return the JSON object *text*. Raise SpecError for anything else."""
    config = parse_json(text, place, "expected a config.json or a DeepSpeed JSON")
    if not isinstance(config, dict):
        raise SpecError(f"{place}: is not a JSON object; expected a config.json")
    return config


def with_inserted_files(text: str, place: str, folder: Path, given: Collection[str]) -> tuple[str, list[str]]:
    """Return the command or script *text* in *folder* with the files that ``$(cat FILE)`` inserts, and a note on each.

    Files with the name of one of *given*, which are read anyway, are skipped. Raise SpecError for a file that does not exist.
    """
    notes: list[str] = []

    def content(match: re.Match[str]) -> str:
        for path, name in _found("$(cat FILE)", match[1] or match[2], place, folder, given, notes):
            notes.append(f"read {name} ($(cat {name}))")
            return text_of(path)
        return ""

    return _INSERTED.sub(content, text), notes


def with_named_files(told: LaunchSettings, text: str, place: str, folder: Path, given: Collection[str]) -> LaunchSettings:
    """Return *told*, read from the command or script *text* in *folder*, joined with the files that the command names.

    Files with the name of one of *given*, which are read anyway, are skipped. Raise SpecError for a file that does not exist.
    """
    said, launcher = arguments(text, place, NUMERIC), _of_launcher(text, place)
    chosen = accelerate_options(launcher, said, place) if launcher else LaunchSettings()
    told = chosen.joined(told)
    explicit = _explicit(told, said)
    option = "config-file"
    if named := launcher.get(option):
        for path, name in _found(option, named, place, folder, given, told.notes):
            base = accelerate_file(path, given, lambda zero, place: deepspeed(_filled(zero, said), place))
            rule = "options win over Accelerate's file"
            notes = _differences(base, explicit, name, lambda _, mine: mine, rule)
            base.sharded_by = {} if chosen.sharded_by else base.sharded_by  # as options win
            told = base.joined(told)
            told.notes += [f"read {name} (--{option.replace('-', '_')})", *notes]
    for option in _DEEPSPEED:
        value = said.get(option, "")
        if option == "deepspeed" and not (value.endswith(".json") or "$" in value):
            continue  # a flag of programs that use add_config_arguments
        for path, name in _found(option, value, place, folder, given, told.notes):
            zero = deepspeed(_filled(json_of(text_of(path), name), said), name)
            rule = "DeepSpeed reads its file; transformers' Trainer refuses the difference"
            notes = _differences(zero, explicit, name, lambda file, _: file, rule)
            told = told.joined(zero)
            told.notes += [f"read {name} (--{option.replace('-', '_')})", *notes]
    for path, name in _found(_TORCHTITAN, said.get(_TORCHTITAN, ""), place, folder, given, told.notes):
        config = parse_toml(text_of(path), name)
        changed = _replace_keys(config, said)
        told = told.joined(torchtitan(config, name))
        told.notes.append(f"read {name} (--job.config_file)" + (f", with {', '.join(changed)}" if changed else ""))
    return told


def _replace_keys(config: dict[str, Any], said: Mapping[str, str]) -> list[str]:
    """Replace the keys of torchtitan's *config* that the options *said* set, and return these options as text."""
    changed = []
    for option, value in said.items():
        *blocks, key = option.replace("-", "_").split(".")
        if not blocks or option == _TORCHTITAN:
            continue
        block = config
        for name in blocks:
            inner = block.setdefault(name, {})
            block = inner if isinstance(inner, dict) else {}  # a key that is no block is reported by the reader
        block[key] = _toml_value(value)
        changed.append(f"--{'.'.join((*blocks, key))}" + (f" {value}" if value else ""))
    return changed


def _toml_value(text: str) -> Any:
    """Return the value of an option as a TOML file would contain it; an option without one is a flag that turns something on."""
    if not text:
        return True
    if text in ("True", "False"):
        return text == "True"
    try:
        return parse_toml(f"value = {text}", "an option")["value"]
    except SpecError:
        return text


def _of_launcher(text: str, place: str) -> Mapping[str, str]:
    """Return the options up to the program that the last ``accelerate launch`` in *text* starts; empty if there is none."""
    launches = [match.end() for match in _ACCELERATE.finditer(text)]
    if not launches:
        return {}
    program = _PROGRAM.search(text, launches[-1])
    return arguments(text[: program.start()] if program else text, place, ())


def accelerate_file(
    path: Path, given: Collection[str], read_json: Callable[[Mapping[str, Any], str], LaunchSettings] = deepspeed
) -> LaunchSettings:
    """Return the settings in Accelerate's YAML at *path*, with those of the DeepSpeed JSON that it names, which *read_json* reads.

    A JSON with the name of one of *given*, which are read anyway, is skipped.
    """
    place = str(path)
    content = yaml.parse(text_of(path), place).value
    if not isinstance(content, Mapping):
        raise SpecError(f"{place}: is not a configuration of Accelerate, which is a block of keys")
    told = accelerate(content, place)
    block = content.get("deepspeed_config")
    named = block.get("deepspeed_config_file") if isinstance(block, Mapping) else None
    if not isinstance(named, str):
        return told
    for file, name in _found("deepspeed_config.deepspeed_config_file", named, place, path.parent, given, told.notes):
        told = told.joined(read_json(json_of(text_of(file), name), name))
    return told


def _found(option: str, value: str, place: str, folder: Path, given: Collection[str], notes: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield the file *value* of *option* and its name in messages; nothing, perhaps with one of *notes*, if it is not to be read."""
    if not value or Path(value).name in given:
        return
    shown = option if "." in option or "$" in option else f"--{option}"
    if "$" in value:
        notes.append(f"{place}: {shown} {shorten(value)} is not read, as its variables are unknown; write the file's path as well")
        return
    path = next((each for each in (folder / value, Path(value)) if each.is_file()), None)
    if path is None:
        raise SpecError(
            f"{place}: {shown} {shorten(value)}: no such file in the current folder or in that of the script; write the path of "
            f"{shorten(Path(value).name)} as well, wherever it is"
        )
    yield path, value


def _filled(zero: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """Return DeepSpeed's keys *zero* with the types of numbers that are ``auto`` from the Trainer's options *said*."""
    automatic = [width for width in ("bf16", "fp16") if isinstance(zero.get(width), Mapping) and zero[width].get("enabled") == "auto"]
    return {**zero, **{width: {**zero[width], "enabled": is_set(said, width)} for width in automatic}}


def _explicit(told: LaunchSettings, said: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of training and layout in *told* that the options *said* set."""
    fields = {**told.training, **told.parallel}
    return {name: value for name, value in fields.items() if name != "batch" or any(option in said for option in _BATCHES)}


def _differences(file: LaunchSettings, explicit: Mapping[str, Any], name: str, winner: Callable[[Any, Any], Any], rule: str) -> list[str]:
    """Return a note on each field that *file* and the command set to different values, which *winner* decides by *rule*."""
    both = {field: (value, explicit[field]) for field, value in {**file.training, **file.parallel}.items() if field in explicit}
    return [
        f"{name} sets {field} {_words(one)}, the command {_words(other)}: used {_words(winner(one, other))} ({rule})"
        for field, (one, other) in both.items()
        if field != "stack" and _words(one) != _words(other)
    ]


def _words(value: Any) -> str:
    """Return the *value* of a field as text; pure and mixed 16 bits are one choice to a user of DeepSpeed."""
    return str(value["name"] if isinstance(value, Mapping) and "name" in value else value).removeprefix("amp_")
