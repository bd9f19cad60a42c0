"""Snapshots survive JSON, the schema is the one promised, and a bad document names its fault."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

import jsonschema
import pytest

from attncheck.core import codec
from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_profile
from attncheck.report.formats import load_format
from attncheck.report.schema import make_report_schema
from tests import snapshots

SCHEMA = make_report_schema()


@dataclass(frozen=True)
class Box:
    name: str
    size: Fact[tuple[int, int]]
    weights: tuple[float, ...] = ()


def test_the_schema_of_reports_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("snapshot", [snapshots.h200(), snapshots.laptop(), snapshots.with_model(snapshots.h200())])
def test_a_report_fits_the_schema_and_a_snapshot_survives_json(snapshot: Snapshot) -> None:
    report = engine.run_rules(snapshot, needs_of_profile("all", snapshot))
    document = json.loads(load_format("json").render(report, False))
    jsonschema.validate(document, SCHEMA)
    assert codec.read(Snapshot, document["snapshot"]) == snapshot


@pytest.mark.parametrize("size", [Known((3, 4)), Absent("empty"), Unreadable("locked")])
def test_each_state_of_a_fact_survives(size: Fact[tuple[int, int]]) -> None:
    box = Box("b", size, (1.5, 2.0))
    assert codec.loads(Box, codec.dumps(box)) == box


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "$: expected Box"),
        ('{"name": "b"}', "size is missing"),
        ('{"name": 3, "size": {"absent": ""}}', "$.name: expected str, found int"),
        ('{"name": "b", "size": 3}', "$.size: expected a fact"),
        ('{"name": "b", "size": {"known": [1]}}', "expected 2 items, found 1"),
        ('{"name": "b", "size": {"known": [1, "x"]}}', "$.size[1]: expected int, found str"),
        ('{"name": "b", "size": {"known": [1, true]}}', "$.size[1]: expected int, found bool"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_document_names_its_fault(text: str, message: str) -> None:
    with pytest.raises(codec.BadDocument) as caught:
        codec.loads(Box, text)
    assert message in str(caught.value)


def test_an_unknown_key_is_ignored() -> None:
    assert codec.loads(Box, '{"name": "b", "size": {"absent": ""}, "later": 1}') == Box("b", Absent())


class Named(NamedTuple):
    name: str


def test_a_named_tuple_is_refused_in_both_directions() -> None:
    with pytest.raises(TypeError):
        codec.to_plain(Named("a"))
    with pytest.raises(TypeError):
        codec.read(Named, {"name": "a"})
