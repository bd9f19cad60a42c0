"""Edits: exactly the words, lines and keys that are meant, in the layout that is there, and files written safely."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import NOWHERE, Edit, Kind, Launch, Setting, Source, SourceLocation
from attncheck.lint.arguments import parse_options, parse_overrides
from attncheck.lint.files.configuration import parse_entries
from attncheck.lint.files.edit_files import find_changed_keys
from attncheck.lint.files.editing import (
    add_key,
    append_argument,
    apply_edits,
    format_diff,
    remove_setting,
    replace_value,
    write_corrected,
)
from attncheck.lint.launches import find_launches, read_source

CONTINUED = "deepspeed --module a.b \\\n   --max_len 4 \\\n   --packing \\\n   --last 1\n"
ARRAY = "A=(\n   --max_len 4  # why\n   --packing\n   --last 1  # end\n)\npython t.py ${A[@]}\n"
HEREDOC = "read -r -d '' A <<EOF\na.b \\\n   --max_len 4 \\\n   --packing \\\n   --last 1\nEOF\ndeepspeed --module $A\n"
ONE_LINE = "python t.py --max_len 4 --packing --last 1\n"
STRING = 'srun bash -c "cd x && \\\n  torchrun t.py \\\n  --max_len 4 \\\n  --packing \\\n  --last 1" &> log\n'
SUBMITTED = "ray job submit -- python3 -m a.b \\\n    max_len=4 \\\n    packing=true \\\n    last=1 $@\n"
SCRIPTS = [CONTINUED, ARRAY, HEREDOC, ONE_LINE, STRING, SUBMITTED]


def parse_launch(text: str) -> Launch:
    return find_launches(Source("run.sh", text, "shell"), lambda _: None)[-1]


def parse_settings(text: str) -> dict[str, Setting]:
    launch = parse_launch(text)
    settings = [
        *parse_options(launch.words[1:], lambda _: "optional", launch.source),
        *parse_overrides(launch.words[1:], launch.source),
    ]
    return {setting.name.lstrip("-"): setting for setting in settings}


def parse_words(text: str) -> list[str]:
    return [word.text for word in parse_launch(text).words]


def remove_settings(text: str, *names: str) -> str:
    source, settings = Source("run.sh", text, "shell"), parse_settings(text)
    return apply_edits(source, [remove_setting(source, settings[name].span) for name in names])


@pytest.mark.parametrize("text", SCRIPTS)
@pytest.mark.parametrize("name", ["max_len", "packing", "last"])
def test_dropped_takes_one_setting_and_its_line(text: str, name: str) -> None:
    corrected = remove_settings(text, name)
    setting = parse_settings(text)[name]
    removed_text = text[slice(*setting.span)]
    assert parse_settings(corrected).keys() == parse_settings(text).keys() - {name}
    assert parse_words(corrected) == [word for word in parse_words(text) if word not in {*removed_text.split()}]
    assert corrected.count("\n") == text.count("\n") - (
        text not in (ONE_LINE,) and not (text == SUBMITTED and name == "last")
    )
    assert " \\\n\n" not in corrected and "\n\n" not in corrected and not corrected.endswith("\\\n")


@pytest.mark.parametrize(
    ("text", "names", "corrected"),
    [
        (CONTINUED, ["last"], "deepspeed --module a.b \\\n   --max_len 4 \\\n   --packing\n"),
        (CONTINUED, ["packing", "last"], "deepspeed --module a.b \\\n   --max_len 4\n"),
        (ARRAY, ["last"], "A=(\n   --max_len 4  # why\n   --packing\n)\npython t.py ${A[@]}\n"),
        (ONE_LINE, ["packing"], "python t.py --max_len 4 --last 1\n"),
        (ONE_LINE, ["last"], "python t.py --max_len 4 --packing\n"),
        ("a b \\\n  --x 1   \\\n  --yy 2  \\\n  --z 3\n", ["yy"], "a b \\\n  --x 1   \\\n  --z 3\n"),
        ("a --x 1 --y", ["x", "y"], "a"),
        ("a \\\n --x \\\n  1 \\\n --y\n", ["x"], "a \\\n --y\n"),
    ],
)
def test_dropped(text: str, names: list[str], corrected: str) -> None:
    assert remove_settings(text, *names) == corrected


@pytest.mark.parametrize("text", SCRIPTS)
def test_replaced_changes_the_value_alone(text: str) -> None:
    source = Source("run.sh", text, "shell")
    corrected = apply_edits(source, [replace_value(parse_settings(text)["max_len"], "8")])
    assert corrected == text.replace("max_len 4", "max_len 8").replace("max_len=4", "max_len=8")


@pytest.mark.parametrize(
    ("text", "name", "value", "corrected"),
    [
        ("a --x $Y", "x", "1", "a --x 1"),
        ("a --x=1 b", "x", "a b", "a --x='a b' b"),
        ("a --x 0.2 0.27", "x", "9", "a --x 9 0.27"),
        ("a x.y='[1]'", "x.y", "[2]", "a x.y='[2]'"),
        ("a 'x.y=b c'", "x.y", "d", "a x.y=d"),
        ("N=1\na x=$N-2", "x", "3", "N=1\na x=3"),
        ("a --x", "x", "on", "a --x on"),
    ],
)
def test_replaced(text: str, name: str, value: str, corrected: str) -> None:
    assert apply_edits(Source("run.sh", text, "shell"), [replace_value(parse_settings(text)[name], value)]) == corrected


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a --x 1 ${MORE[@]}", ["1"]),  # they may hold options
        ("a --x 1 $@ --y 2", ["1", "2"]),
        ("a --x ${MORE[@]}", ["${MORE[@]}"]),
        ("MORE=(2 3)\na --x 1 ${MORE[@]}", ["1 2 3"]),
        ("a --x 1 $LAST", ["1 $LAST"]),
    ],
)
def test_an_unknown_array_is_no_part_of_the_value_before_it(text: str, values: list[str]) -> None:
    settings = parse_options(parse_launch(text).words[1:], lambda _: "many")
    assert [setting.value for setting in settings] == values


def test_replaced_writes_several_values() -> None:
    source = Source("run.sh", "a --x 0.2 0.27 --y", "shell")
    (first, _) = parse_options(parse_launch(source.text).words[1:], lambda _: "many", source)
    assert apply_edits(source, [replace_value(first, ["1", "2 3"])]) == "a --x 1 '2 3' --y"


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        (CONTINUED, CONTINUED.replace("--last 1", "--last 1 \\\n   --new 1")),
        (ARRAY, ARRAY.replace("# end", "# end\n   --new 1")),
        (HEREDOC, HEREDOC.replace("--last 1", "--last 1 \\\n   --new 1")),
        (ONE_LINE, ONE_LINE.replace("--last 1", "--last 1 --new 1")),
        (STRING, STRING.replace("--last 1", "--last 1 \\\n  --new 1")),
        (SUBMITTED, SUBMITTED.replace("last=1", "last=1 \\\n    --new 1")),
        ("python t.py", "python t.py --new 1"),
        ("python t.py \\\n    --x", "python t.py \\\n    --x \\\n    --new 1"),
        ("A=(--x 1)\npython t.py ${A[@]}", "A=(--x 1 --new 1)\npython t.py ${A[@]}"),
        ("A='--x 1'\npython t.py $A --y 2", "A='--x 1'\npython t.py $A --y 2 --new 1"),
    ],
)
def test_appended_follows_the_layout(text: str, corrected: str) -> None:
    launch = parse_launch(text)
    assert apply_edits(launch.source, [append_argument(launch, "--new 1")]) == corrected
    assert sorted(parse_words(corrected)) == sorted([*parse_words(text), "--new", "1"])


@pytest.mark.parametrize("text", [CONTINUED, ARRAY, HEREDOC, ONE_LINE, STRING])
def test_a_setting_is_put_where_the_last_one_goes(text: str) -> None:
    launch = parse_launch(text)
    last = parse_settings(text)["last"]
    corrected = apply_edits(
        launch.source, [remove_setting(launch.source, last.span), append_argument(launch, "--new 1")]
    )
    assert parse_words(corrected) == [*parse_words(text)[:-2], "--new", "1"]
    assert corrected.count("\n") == text.count("\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("text", [*SCRIPTS, "a b \\\n  --x 1   \\\n  --yy 2  \\\n  --z 3\n"])
def test_bash_still_reads_what_is_edited(text: str) -> None:
    launch = parse_launch(text)
    for setting in parse_settings(text).values():
        for edit in (remove_setting(launch.source, setting.span), append_argument(launch, "--new 1")):
            corrected = apply_edits(launch.source, [edit])
            assert subprocess.run(["bash", "-n", "-c", corrected], timeout=20, check=False).returncode == 0


def test_edits_do_not_overlap() -> None:
    source = Source("x", "abcdef")
    assert apply_edits(source, [Edit("x", (4, 6), "F"), Edit("x", (0, 1), ""), Edit("x", (4, 4), "+")]) == "bcd+F"
    for edits in ([Edit("x", (0, 3), ""), Edit("x", (2, 4), "")], [Edit("y", (0, 1), "")], [Edit("x", (5, 9), "")]):
        with pytest.raises(ValueError, match=r"overlap|not one of"):
            apply_edits(source, edits)


def test_what_stands_nowhere_is_not_edited() -> None:
    setting = Setting("x", "1", SourceLocation("run.sh"), NOWHERE)
    with pytest.raises(ValueError, match="several places"):
        replace_value(setting, "2")
    with pytest.raises(ValueError, match="several places"):
        remove_setting(Source("run.sh", ""), NOWHERE)


def test_the_diff_is_one_that_patch_reads(tmp_path: Path) -> None:
    source = Source("run.sh", CONTINUED, "shell")
    corrected = remove_settings(CONTINUED, "packing")
    assert format_diff(source, CONTINUED) == ""
    text = format_diff(source, corrected)
    assert text.startswith("--- a/run.sh\n+++ b/run.sh\n@@") and "-   --packing \\\n" in text
    if shutil.which("patch"):
        (tmp_path / "run.sh").write_text(CONTINUED)
        subprocess.run(
            ["patch", "-p1"], input=text, text=True, cwd=tmp_path, check=True, timeout=20, stdout=subprocess.DEVNULL
        )
        assert (tmp_path / "run.sh").read_text() == corrected


# Configuration files.

YAML = 'a: 1  # one\nb:\n  c: 2  # two\n\n  d: "x"\n  e: {f: 1, g: 2}\nlist:\n  - p: 1\n    q: 2\nempty:\n'
JSON = '{\n  "a": 1,\n  "b": {"c": "x", "d": 2},\n  "e": true\n}\n'
TOML = 'a = 1 # one\n[b]\nc = "s"\nd = [\n 1,\n]\n'


def parse_file(text: str, kind: Kind) -> tuple[Source, dict[str, Setting]]:
    source = Source(f"c.{kind}", text, kind)
    return source, {setting.name: setting for setting in parse_entries(source)}


@pytest.mark.parametrize(("text", "kind"), [(YAML, "yaml"), (JSON, "json"), (TOML, "toml")])
def test_every_key_of_a_file_can_be_dropped_and_replaced(text: str, kind: Kind) -> None:
    source, settings = parse_file(text, kind)
    for name, setting in settings.items():
        siblings = [other for other in settings if other.rsplit(".", 1)[0] == name.rsplit(".", 1)[0]]
        if len(siblings) > 1 or "." not in name:
            assert find_changed_keys(source, apply_edits(source, [remove_setting(source, setting.span)])) == (name,)
        corrected = apply_edits(source, [replace_value(setting, "flash_attention_2")])
        assert find_changed_keys(source, corrected) == (name,)
        assert parse_file(corrected, kind)[1][name].value == "flash_attention_2"


@pytest.mark.parametrize(("text", "kind"), [(YAML, "yaml"), (JSON, "json"), (TOML, "toml")])
@pytest.mark.parametrize("name", ["z", "b.z", "z.y.x", "b.z.y"])
def test_keys_are_added_where_they_belong(text: str, kind: Kind, name: str) -> None:
    source, _ = parse_file(text, kind)
    corrected = apply_edits(source, [add_key(source, name, "true")])
    assert find_changed_keys(source, corrected) == (name,)
    assert parse_file(corrected, kind)[1][name].value == "true"


@pytest.mark.parametrize(
    ("value", "yaml"),
    [
        ("8", "8"),
        ("true", "true"),
        ("a: b", '"a: b"'),
        ("- x", '"- x"'),
        ("", '""'),
        ("a b", "a b"),
        ("#x", '"#x"'),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_values_are_quoted_as_yaml_asks(value: str, yaml: str) -> None:
    source, settings = parse_file("x:\n", "yaml")
    corrected = apply_edits(source, [replace_value(settings["x"], value)])
    assert corrected == f"x: {yaml}\n"
    assert parse_file(corrected, "yaml")[1]["x"].value == value


def test_comments_and_layout_of_yaml_stay() -> None:
    source, settings = parse_file(YAML, "yaml")
    corrected = apply_edits(
        source,
        [remove_setting(source, settings["a"].span), replace_value(settings["b.c"], "3"), add_key(source, "b.z", "4")],
    )
    assert corrected == YAML.replace("a: 1  # one\n", "").replace("c: 2", "c: 3").replace('"x"\n', '"x"\n  z: 4\n')
    list_source, _ = parse_file("x:\n  - p: 1\n    q: 2\n", "yaml")
    assert apply_edits(list_source, [remove_setting(list_source, (7, 11))]) == "x:\n  - q: 2\n"


def test_a_line_is_appended_to_a_file() -> None:
    (launch,) = find_launches(Source("c.yaml", "a: 1", "yaml"), lambda _: None)
    assert apply_edits(launch.source, [append_argument(launch, "b: 2")]) == "a: 1\nb: 2\n"


# Writing.


def test_written_keeps_mode_newlines_and_mark(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(b"\xef\xbb\xbf" + ONE_LINE.replace("\n", "\r\n").encode())
    path.chmod(0o751)
    source = read_source(str(path))
    write_corrected(source, str(path), source.text.replace("4", "8"))
    assert path.read_bytes() == b"\xef\xbb\xbf" + ONE_LINE.replace("\n", "\r\n").replace("4", "8").encode()
    assert path.stat().st_mode & 0o777 == 0o751
    assert [file.name for file in tmp_path.iterdir()] == ["run.sh"]


def test_written_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.sh").write_text("a\n")
    (tmp_path / "link.sh").symlink_to("real.sh")
    source = read_source(str(tmp_path / "link.sh"))
    write_corrected(source, source.name, "b\n")
    assert (tmp_path / "link.sh").is_symlink() and (tmp_path / "real.sh").read_text() == "b\n"


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: 1\n")
    source = read_source(str(path))
    path.write_text("a: 2\n")
    with pytest.raises(BadUsage, match="changed since it was read"):
        write_corrected(source, str(path), "a: 3\n")
    path.unlink()
    with pytest.raises(BadUsage, match="cannot write"):
        write_corrected(source, str(path), "a: 3\n")
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_does_not_parse_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: 1\nb: 2\n")
    source = read_source(str(path))
    with pytest.raises(BadUsage, match="expected"):
        write_corrected(source, str(path), "a: [3\n")
    assert path.read_text() == "a: 1\nb: 2\n"
    write_corrected(source, str(path), "a: 3\nb: 2\n")
    assert path.read_text() == "a: 3\nb: 2\n"
