"""A small mutator: byte flips, cuts, splices, repeats, hostile tokens and deep nesting, all from one seed.

`mutate` damages the text, which is then mostly refused if it is parsed; `mutate_values` puts wrong values into a
document that stays well formed, so that they reach what reads them.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

TOKENS = tuple(
    token.encode("utf-8", "surrogatepass")
    for token in (
        *("\0", "\n", "\r\n", "\t", "\x1b[31m", "\x7f", "\u202e", "\ufeff", "\ud800", "é", "𝕏", "\u2028", "\x85"),
        *("'", '"', '"""', "\\", "`", "$(", "${", "}", "$((", "<<EOF\n", "<(", "&&", "||", ";;", "(", ")", "{", "["),
        *("- ", ": ", "? ", "!!python/object:os.system ", "&a ", "*a", "<<: *a", "---\n", "...\n", "%YAML 9\n", "# "),
        *("[[a]]\n", "[a.b]\n", "a.b.c = 1\n", "= =", ",", ",,", "=", "--", " -1", "-", "@", "x", "%s", "{0}", "~"),
        *("true", "null", "NaN", "-Infinity", "1e999999", "0x", "-0", "9" * 5000, "1" * 400, "2147483648", "١", "²"),
        *("[]", "{}", '""', '{"known": null}', '{"known": {"known": 1}}', '{"absent": 1}', '{"unreadable": "x"}'),
        *("/dev/zero", "/dev/stdin", "/proc/self/fd/0", "/", "..", "~root", "file:///x", "x" * 5000, "a/" * 3000),
    )
)  # fmt: skip
NESTING = (b"[", b"{", b'{"a":', b"(", b"$(", b"${a:-", b"a.", b"- ", b"[[", b"{a: ", b"'", b'"', b"a: &a\n  <<: *a\n ")
DEPTHS = (2, 30, 300, 3000)
WRONG_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**70, -(2**70), 0.5, -1e300, float("nan"), float("inf"), 10**400),
    *("", "x", "32", "\x00", "\n", "\x1b[2J", "é" * 50, "\ud800", "a\nb", "x" * 5000, "../..", "/dev/zero", "2.9"),
    *([], {}, [[]], [None], ["x"] * 20, list(range(20)), {"a": {}}, {"known": None}, {"known": []}, {"absent": "x"}),
    *({"unreadable": "x"}, [{}], {"known": {"known": 1}}, {"": ""}, "2026-11-21", "9999-99-99", "nan", "[", "%s"),
)  # fmt: skip


def mutate(random_source: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return `data` with one to six changes; a splice takes its piece from one of `others`."""
    for _ in range(random_source.choice((1, 1, 1, 2, 3, 6))):
        data = random_source.choice(_CHANGES)(random_source, data, others or (data,))
    return data


def _cut_points(random_source: random.Random, data: bytes) -> tuple[int, int]:
    start = random_source.randrange(len(data) + 1)
    return start, min(len(data), start + random_source.choice((1, 1, 3, 20, 200)))


def _flip_bit(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    index = random_source.randrange(len(data))
    return data[:index] + bytes((data[index] ^ (1 << random_source.randrange(8)),)) + data[index + 1 :]


def _remove(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _cut_points(random_source, data)
    return data[:start] + data[end:]


def _repeat(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _cut_points(random_source, data)
    return data[:end] + data[start:end] * random_source.choice((1, 2, 50)) + data[end:]


def _truncate(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: random_source.randrange(len(data) + 1)]


def _splice(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = random_source.choice(others)
    return data[: random_source.randrange(len(data) + 1)] + other[random_source.randrange(len(other) + 1) :]


def _insert_token(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, _ = _cut_points(random_source, data)
    return data[:start] + random_source.choice(TOKENS) * random_source.choice((1, 1, 1, 8)) + data[start:]


def _replace_value(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Put a token in the place of a word between separators: what is around it stays well formed."""
    words = data.replace(b"=", b" ").replace(b":", b" ").replace(b",", b" ").split()
    return data.replace(random_source.choice(words), random_source.choice(TOKENS), 1) if words else data


def _nest(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, _ = _cut_points(random_source, data)
    return data[:start] + random_source.choice(NESTING) * random_source.choice(DEPTHS) + data[start:]


def _shuffle_lines(random_source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    random_source.shuffle(lines)
    return b"\n".join(lines)


_CHANGES = (
    *(_flip_bit, _remove, _repeat, _truncate, _splice, _insert_token, _insert_token),
    *(_replace_value, _replace_value, _nest, _shuffle_lines),
)


def mutate_values(random_source: random.Random, document: Any) -> Any:
    """Return a JSON document with one to four values replaced, removed, repeated or moved."""
    document = copy.deepcopy(document)
    for _ in range(random_source.choice((1, 1, 1, 2, 4))):
        places = list(_iter_places(document))
        if not places:
            break
        container, key = random_source.choice(places)
        change = random_source.randrange(10)
        if change == 0:
            del container[key]
        elif change == 1:
            other, other_key = random_source.choice(places)
            container[key] = copy.deepcopy(other[other_key])
        elif change == 2 and isinstance(container, list):
            container.extend(copy.deepcopy([container[key]] * random_source.choice((1, 40))))
        elif change == 3 and isinstance(container[key], str):
            text = mutate(random_source, container[key].encode("utf-8", "surrogatepass"))
            container[key] = text.decode("utf-8", "replace")
        elif change == 4:
            container[key] = random_source.choice(([container[key]], {"known": container[key]}, str(container[key])))
        else:
            container[key] = copy.deepcopy(random_source.choice(WRONG_VALUES))
    return document


def mutate_json(random_source: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return a damaged JSON text: its values four times in five, else its characters."""
    if random_source.random() < 0.2:
        return mutate(random_source, data, others)
    return json.dumps(mutate_values(random_source, json.loads(data))).encode()


def _iter_places(value: Any) -> Any:
    """Yield every place that holds a value, as (container, key)."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _iter_places(item)
