"""Configuration files: every key with its value and its span, and one line for what does not parse."""

from __future__ import annotations

import pytest

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import NOWHERE, Kind, Setting, Source
from attncheck.lint.files.configuration import parse_configuration, parse_entries
from attncheck.lint.launches import find_launches
from tests.lint.launches import read_no_file

YAML = """# a comment
model: meta/llama  # another
train:
  lr: 1.0e-5
  path: "a b"
  devices: [0, one, {two: 2}]
  home: ${oc.env:HOME}
datasets:
  - path: x
    type: y
base: &base {a: 1, b: 2}
derived:
  <<: *base
  b: 3
same: *base
nothing:
text: |
  one
  two
"""
JSON = '{\n  "a": 1, "b": {"c": "x\\ny", "d": [1, {"e": null}]},\n  "f": true, "g": {}\n}'
TOML = 'a = 1 # one\n[b]\nc = "x#y"\nd = [\n  1, # two\n  2,\n]\n"e.f" = true\n[[list]]\nx = 1\n[g.h]\ni.j = 1.5\n'


def parse_settings(text: str, kind: Kind = "yaml") -> dict[str, Setting]:
    return {setting.name: setting for setting in parse_entries(Source("file", text, kind))}


def parse_values(text: str, kind: Kind = "yaml") -> dict[str, str]:
    return {name: setting.value for name, setting in parse_settings(text, kind).items()}


def test_yaml() -> None:
    assert parse_values(YAML) == {
        "model": "meta/llama",
        "train.lr": "1.0e-5",
        "train.path": "a b",
        "train.devices": '[0, "one", {"two": 2}]',
        "train.home": "${oc.env:HOME}",
        "datasets": '[{"path": "x", "type": "y"}]',
        "base.a": "1",
        "base.b": "2",
        "derived.a": "1",
        "derived.b": "3",
        "same.a": "1",
        "same.b": "2",
        "nothing": "",
        "text": "one\ntwo\n",
    }


def test_json() -> None:
    assert parse_values(JSON, "json") == {"a": "1", "b.c": "x\ny", "b.d": '[1, {"e": null}]', "f": "true", "g": "{}"}


def test_toml() -> None:
    expected = {"a": "1", "b.c": "x#y", "b.d": "[1, 2]", "b.e.f": "true", "list": '[{"x": 1}]', "g.h.i.j": "1.5"}
    assert parse_values(TOML, "toml") == expected


@pytest.mark.parametrize(
    ("text", "kind", "name", "location", "text_of_setting", "value"),
    [
        (YAML, "yaml", "model", "file:2:1", "model: meta/llama", "meta/llama"),
        (YAML, "yaml", "train.path", "file:5:3", 'path: "a b"', '"a b"'),
        (YAML, "yaml", "base.b", "file:11:20", "b: 2", "2"),
        (YAML, "yaml", "nothing", "file:16:1", "nothing:", ""),
        (JSON, "json", "b.c", "file:2:17", '"c": "x\\ny"', '"x\\ny"'),
        (TOML, "toml", "b.c", "file:3:1", 'c = "x#y"', '"x#y"'),
        (TOML, "toml", "b.d", "file:4:1", "d = [\n  1, # two\n  2,\n]", "[\n  1, # two\n  2,\n]"),
    ],
)
def test_places(text: str, kind: Kind, name: str, location: str, text_of_setting: str, value: str) -> None:
    setting = parse_settings(text, kind)[name]
    assert str(setting.location) == location
    assert (text[slice(*setting.span)], text[slice(*setting.value_span)]) == (text_of_setting, value)


def test_what_an_alias_or_a_merge_brings_stands_nowhere() -> None:
    settings = parse_settings(YAML)
    assert settings["derived.a"].span == settings["same.b"].span == NOWHERE
    assert settings["derived.b"].span != NOWHERE
    assert parse_settings(TOML, "toml")["list"].span == NOWHERE


def test_what_only_running_tells_is_not_known() -> None:
    settings = parse_settings(YAML + "missing: ???\ntemplate: '{{ x }}'\n")
    assert [name for name, setting in settings.items() if not setting.known] == ["train.home", "missing", "template"]


def test_keys_written_twice_are_both_there() -> None:
    assert [entry.value for entry in parse_entries(Source("f", "a: 1\nb: 2\na: 3\n", "yaml"))] == ["1", "2", "3"]


def test_a_file_with_directives_is_read() -> None:
    assert parse_values("%YAML 1.2\n%TAG ! tag:example.org,2000:\n---\na: !own 1\n") == {"a": "1"}


def test_of_several_documents_the_first_is_read() -> None:
    configuration = parse_configuration(Source("f", "---\na: 1\n---\na: 2\n", "yaml"))
    assert [entry.value for entry in configuration.entries] == ["1"]
    assert configuration.notes == ("only the first of several YAML documents is read",)
    assert parse_configuration(Source("f", "a: 1\n", "yaml")).notes == ()


@pytest.mark.parametrize(("text", "kind"), [("", "yaml"), ("# x\n", "yaml"), ("", "toml"), ("{}", "json")])
def test_empty_files_set_nothing(text: str, kind: Kind) -> None:
    assert parse_entries(Source("f", text, kind)) == ()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("a: 1\n b: 2\n", "yaml", "f:2:3: mapping values are not allowed here"),
        ("a: [1\n", "yaml", "f:2:1: expected ',' or ']'"),
        ("a:\n\tb: 1\n", "yaml", "f:2:1: found character '\\t' that cannot start any token"),
        ("a: *x\n", "yaml", "f:1:4: found undefined alias 'x'"),
        ("- a\n", "yaml", "f:1:1: a configuration must be a mapping of keys to values"),
        ('{"a": 1,\n}', "json", "f:"),
        ("[1]", "json", "f: a configuration must be an object"),
        ("a = 1\nb = \n", "toml", "f:2:5: Invalid value"),
        ("a = 1\na = 2\n", "toml", "Cannot overwrite a value"),
        ("a: " + "[" * 3000, "yaml", "f"),
        ('{"a": ' + "[" * 100_000, "json", "f: nested too deeply"),
    ],
)
def test_what_does_not_parse_is_one_line(text: str, kind: Kind, message: str) -> None:
    with pytest.raises(BadUsage) as raised:
        parse_entries(Source("f", text, kind))
    assert message in str(raised.value) and "\n" not in str(raised.value) and str(raised.value).startswith("f")


@pytest.mark.parametrize(("name", "count"), [("out/v0/args.json", 0), ("out/v0/train.json", 1)])
def test_the_arguments_that_a_run_saves_are_no_launch(name: str, count: int) -> None:
    text = '{"output_dir": "o", "per_device_train_batch_size": 1, "model": "m", "tuner_type": "lora"}'
    assert len(find_launches(Source(name, text, "json"), read_no_file)) == count
