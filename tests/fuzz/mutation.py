"""What does a file that went wrong look like? Bytes cut, doubled and swapped, odd words put in, and one field of another type or size."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, "", "x", "-1", "nan", "inf", "1e400", "0x10", "\0", "\ufeff", "\ud800", "=1+1", "/", "..", "a/b~c", [], {}, [[]],
    {"": None}, [None], {"x": {"y": {}}}, 0, -1, 1, 2, 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), 2**31, 2**63,
    10**25, "9" * 5000, [1] * 100, "25 Gbps", "7 GiB", "1 us", "1..9", "resnet50", "p3.8xlarge",
)  # fmt: skip
"""Values that are seldom meant."""
TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"null", b"[]", b"{}", b"[" * 50, b"{\"a\":" * 50, b"\xff\xfe", b"\0",
    b"\xef\xbb\xbf", b'"', b"'",
    b"\n", b"\r\n", b",", b":", b"-", b"#", b"<!DOCTYPE x>", b"&amp;", b"]]>", b"=HYPERLINK(1)", b"-5", b"0", b"9" * 400,
    b"!!python/object:os.system",
    b"&a [*a]", b"  ", b"\t", b"1e9", b"12:30", b"yes", b"\x1f\x8b",
)  # fmt: skip


def mutated(seed: bytes, random: Random) -> bytes:
    """Return *seed* with one to four things wrong."""
    if random.random() < 0.5 and (changed := _field_changed(seed, random)) is not None:
        return changed
    content = bytearray(seed)
    for _ in range(random.randint(1, 4)):
        start = random.randint(0, len(content))
        end = min(len(content), start + random.choice((0, 1, 2, 8, 40, 400)))
        kind = random.randrange(6)
        if kind == 0:
            del content[start:end]
        elif kind == 1:
            content[start:start] = content[start:end]
        elif kind == 2:
            content[start:end] = random.choice(TOKENS)
        elif kind == 3 and end > start:
            content[start] ^= 1 << random.randrange(8)
        elif kind == 4:
            del content[start:]
        else:
            other = random.randint(0, len(content))
            content[start:start] = content[other : other + (end - start)]
    return gzip.compress(bytes(content), 1, mtime=0) if random.random() < 0.02 else bytes(content)


def _field_changed(seed: bytes, random: Random) -> bytes | None:
    """Return *seed* with a field of another value, where it is JSON or lines of it; a cell of another text, where it is a table."""
    try:
        value = json.loads(seed)
    except ValueError:
        lines = seed.split(b"\n")
        place = random.randrange(len(lines))
        if lines[place].startswith(b"{") and lines[place] != seed:
            lines[place] = _field_changed(lines[place], random) or lines[place]
        elif b"," in lines[place]:
            cells = lines[place].split(b",")
            cells[random.randrange(len(cells))] = str(random.choice(ODD)).encode("utf-8", "surrogatepass")
            lines[place] = b",".join(cells)
        elif b": " in lines[place]:
            lines[place] = lines[place].partition(b": ")[0] + b": " + _written(random.choice(ODD))
        else:
            return None
        return b"\n".join(lines)
    value = deepcopy(value)
    holders = list(_holders(value))
    for _ in range(random.randint(1, 2)):
        if not holders:
            break
        holder = random.choice(holders)
        key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder))) if holder else None
        if key is not None and random.random() < 0.25:
            del holder[key]
        elif key is not None:
            holder[key] = random.choice(ODD)
        holders = [holder for holder in holders if holder]
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _written(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _holders(value: Any) -> list[Any]:
    """Return every list and object inside *value* that holds something."""
    holders, level = [], [value]
    while level:
        one = level.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if inner:
            holders.append(one)
        level += [held for held in inner if isinstance(held, dict | list)]
    return holders
