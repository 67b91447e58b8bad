"""Is what was cached found again, and only that? Oracle: counted calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sim.check import check_hardware, require
from sim.spec.elsewhere import read_files
from sim.spec.library import load_hardware
from sim.spec.memo import MOST, caching, get_or_make
from sim.spec.yaml import SpecError
from sim.study.jobs_file import jobs_file


class Counted:
    """Makes 1, 2, 3 ..."""

    made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


def test_outside_of_caching_nothing_is_kept() -> None:
    make = Counted()
    assert [get_or_make("key", make) for _ in range(3)] == [1, 2, 3]


def test_what_was_made_is_found_again_by_its_key() -> None:
    make = Counted()
    with caching("a study"):
        assert [get_or_make(key, make) for key in ("one", "two", "one", "two")] == [1, 2, 1, 2]
    assert get_or_make("one", make) == 3
    with caching("a study"):
        assert get_or_make("one", make) == 1


def test_another_study_starts_with_an_empty_cache() -> None:
    make = Counted()
    for number, name in enumerate(("first", "second", "first"), start=1):
        with caching(name):
            assert get_or_make("key", make) == number


def test_only_so_much_is_kept_and_what_was_asked_last_stays() -> None:
    make = Counted()
    with caching("many"):
        get_or_make("old", make)
        get_or_make("often", make)
        for number in range(MOST - 1):
            get_or_make(number, make)
            assert get_or_make("often", make) == 2
        assert get_or_make("old", make) == MOST + 2


def test_what_is_not_worth_it_and_what_fails_is_made_again() -> None:
    make = Counted()

    def refuse() -> int:
        make()
        raise SpecError("no")

    with caching("refusals"):
        assert [get_or_make("key", make, should_cache=lambda: False) for _ in range(2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(SpecError, match="no"):
                get_or_make("bad", refuse)
    assert make.made == 4


def test_descriptions_are_read_once_in_a_study(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: p3.2xlarge\nname: mine\n")
    with caching("files"):
        first = load_hardware(str(path))
        assert load_hardware(str(path)) is first
        assert load_hardware(str(path), ["node.gpu_count=2"]) is not first
    assert load_hardware(str(path)) is not first


def test_files_of_cached_descriptions_are_recorded(tmp_path: Path) -> None:
    """Oracle: the files without a cache. A study's fingerprint holds them, and must not depend on what the process loaded before."""
    path = tmp_path / "mine.yaml"
    path.write_text("extends: p3.2xlarge\nname: mine\n")

    def read(load: Callable[[], object]) -> set[Path]:
        with read_files() as files:
            load()
        return files

    def mine() -> object:
        return load_hardware(str(path))

    with read_files() as around:
        plain = read(mine)
    assert around == plain and path in plain and len(plain) > 5
    with caching("parts before"):
        load_hardware("p3.2xlarge")
        load_hardware("p3.8xlarge")
        assert [read(mine) for _ in range(2)] == [plain, plain]
        jobs = [read(lambda: jobs_file("four-on-eight-gpus")) for _ in range(2)]
    assert jobs[0] == jobs[1] != set()


def test_a_reference_that_cannot_be_followed_is_told_every_time(tmp_path: Path) -> None:
    """Oracle: the message without a cache, for a file whose part names an unknown part."""
    (tmp_path / "inner.yaml").write_text("extends: p3.2xlarge\nname: inner\nnode: {gpu: nosuch}\n")
    path = tmp_path / "outer.yaml"
    path.write_text("name: outer\ngroups: [{node: inner.yaml, count: 1, role: worker}]\n")
    messages = []
    for name in ("", "a", "a"):
        with pytest.raises(SpecError) as refused:
            if name:
                with caching(name):
                    load_hardware(str(path))
            else:
                load_hardware(str(path))
        messages.append(str(refused.value))
    assert "nosuch" in messages[0]
    assert messages[1:] == messages[:1] * 2


@pytest.mark.parametrize("name", ["p3.16xlarge", "2x-p3.8xlarge", "dlperf", "hgx-h100", "cm-dare-p100"])
def test_descriptions_made_of_kept_parts_are_the_same(name: str) -> None:
    """Oracle: the description without a cache; a change inside a part must not be hidden by the part as it was before."""
    changes = [[], ["groups.0.node.gpu.memory=7 GiB"], ["groups.0.node.host.cpu.clock=2 GHz"], ["fabric.latency=1 us"], []]
    plain = [load_hardware(name, change) for change in changes]
    with caching(f"parts of {name}"):
        kept = [load_hardware(name, change) for change in changes]
    assert [(one.spec, one.sha256) for one in kept] == [(one.spec, one.sha256) for one in plain]
    assert kept[0].spec.groups[0].node is not kept[1].spec.groups[0].node
    assert kept[1].spec.groups[0].node.host.cpu is kept[0].spec.groups[0].node.host.cpu


def test_wrong_values_beside_kept_parts_are_told_alike() -> None:
    """Oracle: the messages without a cache, for values that cannot be, cannot be read, and are unknown."""
    wrong = [
        ["node.gpu.memory=1 B"],
        ["node.gpu.memory=red"],
        ["node.gpu.color=7 GiB"],
        ["node.nic.bandwidth=1 Mbps"],
    ]

    def refusals() -> list[str]:
        messages = []
        for change in wrong:
            with pytest.raises(SpecError) as refused:
                loaded = load_hardware("p3.16xlarge", change)
                require(check_hardware(loaded.spec, loaded.document))
            messages.append(str(refused.value))
        return messages

    plain = refusals()
    with caching("wrong"):
        load_hardware("p3.16xlarge")
        assert refusals() == refusals() == plain
