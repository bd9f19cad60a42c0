"""The policy's JSON schema takes what the parser takes, and refuses what it refuses."""

from __future__ import annotations

import datetime
import json
import math
import random
import re
from typing import Any

import pytest
from jsonschema import Draft7Validator, FormatChecker
from packaging.version import InvalidVersion, Version

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.toml import parse_toml
from attncheck.core.plan import CHOICES
from attncheck.gate import init
from attncheck.gate.policy import READERS, parse_policy
from attncheck.gate.policy_schema import DESCRIPTIONS, VERSION, make_policy_schema
from tests.conftest import Run
from tests.gate.test_policy_file import FULL_POLICY, test_a_mistake_is_named
from tests.snippets import ROOT, find_snippets

SCHEMA = make_policy_schema()
VALIDATOR = Draft7Validator(SCHEMA, format_checker=FormatChecker())
MISTAKES = [text for text, _ in test_a_mistake_is_named.pytestmark[0].args[1]]  # type: ignore[attr-defined]


def as_json(value: Any) -> Any:
    """Return a value of TOML as an editor hands it to a schema: dates are strings."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def schema_takes(table: dict[str, Any]) -> bool:
    return bool(VALIDATOR.is_valid(as_json(table)))


def parser_takes(table: dict[str, Any]) -> bool:
    try:
        parse_policy(table, "attncheck.toml")
    except BadUsage:
        return False
    return True


def test_the_schema_is_a_schema_as_the_store_takes_it() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert list(SCHEMA)[:2] == ["$schema", "$id"] and SCHEMA["$id"].startswith("https://json.schemastore.org/")
    assert SCHEMA["properties"].keys() == READERS.keys() == DESCRIPTIONS.keys()
    assert all(text.endswith(".") for text in DESCRIPTIONS.values())


def test_the_command_prints_both_schemas(attncheck: Run) -> None:
    assert json.loads(attncheck("schema", "policy").stdout) == SCHEMA
    report = json.loads(attncheck("schema").stdout)
    assert report == json.loads(attncheck("schema", "report").stdout)
    assert re.fullmatch(r"https://\S+/report-\d+\.json", report["$id"])
    refused = attncheck("schema", "polizy")
    assert refused.returncode == 2 and "report or policy" in refused.stderr


def test_it_takes_every_key_and_the_examples() -> None:
    (example,) = (block for block in find_snippets(ROOT / "docs" / "ci-and-clusters.md") if block.language == "toml")
    documented = parse_toml(example.text, "pyproject.toml")["tool"]["attncheck"]
    full = parse_toml(FULL_POLICY, "attncheck.toml")
    empty = init.render_policy(init.Project((), (), (), (), ()))
    for table in (full, documented, parse_toml(empty, "attncheck.toml"), {}):
        assert parser_takes(table) and not list(VALIDATOR.iter_errors(as_json(table)))
    assert full.keys() | documented.keys() == READERS.keys(), "a key without an example"


@pytest.mark.parametrize("text", MISTAKES)
def test_it_refuses_the_mistakes_that_the_parser_names(text: str) -> None:
    try:
        table = parse_toml(text, "attncheck.toml")
    except BadUsage:
        return  # not TOML: an editor says so itself
    if any(isinstance(value, float) and not math.isfinite(value) for value in iter_leaves(table)):
        return  # inf and nan, which JSON does not have
    assert not parser_takes(table) and not schema_takes(table)


def iter_leaves(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if children is None else [leaf for child in children for leaf in iter_leaves(child)]


def test_random_values_are_taken_alike() -> None:
    """Each key with values of every kind, right ones of other keys among them; no date, which JSON has as a string."""
    rng = random.Random(20)
    words = [*parse_toml(FULL_POLICY, "x").values(), *(choice for group in CHOICES.values() for choice in group)]
    values = [*words, True, False, 0, 1, 2, 1024, 1025, -1, 0.5, 86399.9, 86400, "", " ", "a\0b", "x", [], [""], ["x"]]
    values += [
        {},
        [{}],
        [1],
        ["doctor", "bench", "doctor"],
        {"max-error": 0.1},
        {"max-error": "x"},
    ]
    tables: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for value in values:
        tables += [((key, repr(value)), {key: value}) for key in (*READERS, "ring_size", "unknown")]
        plan_keys = (*SCHEMA["properties"]["plan"]["properties"], "seed", "environ", "ring-size", "batch_size")
        tables += [(("plan", key, repr(value)), {"plan": {key: value}}) for key in plan_keys]
        tables += [(("thresholds", key, repr(value)), {"thresholds": {key: value}}) for key in ("max-error", "max")]
    for _ in range(300):
        allowance = {
            key: rng.choice(["ATN1", " ", 3, "2027-02-30", "2027-02-03", "2027-2-3"])
            for key in rng.sample(["code", "reason", "until", "more"], rng.randint(2, 4))
        }
        tables.append((("ignore", repr(allowance)), {"ignore": [allowance]}))
    different = {name for name, table in tables if parser_takes(table) != schema_takes(table)}
    assert not different, sorted(different)
    taken = sum(parser_takes(table) for _, table in tables)
    assert len(tables) > 2000 and 200 < taken < len(tables) - 200, "both answers are common"


def test_versions_are_taken_as_packaging_takes_them() -> None:
    rng = random.Random(3)
    parts = ["1", "0", ".", "v", "!", "a", "rc", "Alpha", "post", ".post", "-", "_", "dev", "+", "cu130", "r", " ", "x"]
    texts = ["".join(rng.choice(parts) for _ in range(rng.randint(1, 7))) for _ in range(30_000)]
    answers = {True: 0, False: 0}
    for text in texts:
        try:
            Version(text)
            valid = True
        except InvalidVersion:
            valid = False
        assert (re.search(VERSION, text) is not None) == valid, text
        answers[valid] += 1
    assert min(answers.values()) > 1000, answers


def test_a_key_that_the_schema_lacks_would_be_noticed() -> None:
    narrow = {**SCHEMA, "properties": {key: value for key, value in SCHEMA["properties"].items() if key != "suite"}}
    assert not Draft7Validator(narrow).is_valid(as_json(parse_toml(FULL_POLICY, "x")))
