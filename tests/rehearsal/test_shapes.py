"""The shapes of row fields, as a script uses them: turns with its own keys, tables, numbers, batches of texts."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.rehearsal import UNDOCUMENTED, JobCut
from attncheck.core.results.rehearsal import RehearsedLaunch
from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal import execution, lacking, run
from attncheck.rehearsal.columns import list_columns, list_modules, read_named_columns
from attncheck.rehearsal.fidelity import OWN_ROWS
from attncheck.rehearsal.shapes import read_shapes
from attncheck.rehearsal.worker.materials import VOCABULARY_SIZE, add_columns, make_data
from attncheck.rehearsal.worker.materials import fit_rows as fit_materials
from attncheck.rehearsal.worker.shapes import fit_rows

SCRIPT = '''
class Rows:
    def __getitem__(self, index):
        row = self.rows[index]
        talk = row["dialog"]
        text = " ".join(turn["text"] for turn in talk if turn["speaker"] == "user")
        for choice in row["options"]:
            text += choice["letter"] + choice["body"].strip()
        first = row["messages"][0]["value"]
        return text + row["answers"]["span"][0] + row["plain"] + first, int(row["score"]), row.get("never")

def take(batch, tokenizer):
    """A batch of columns: each row has one text."""
    for i in range(len(batch["question"])):
        print(batch["question"][i] + "?", batch["chat"][i][-1]["role"], batch["chat"][i][0]["content"])
    for text in batch["passage"]:
        print(text.strip())
'''
ROWS = """
row = self.rows[0]
talk = row["dialog"]
assert [turn["speaker"] for turn in talk] == ["user", "assistant"] and talk[1]["text"] == ""
assert [turn["role"] for turn in row["chat"]] == ["user", "assistant"]
assert row["messages"][0]["value"] == row["messages"][0]["content"] == "q"
assert isinstance(row["question"], str) and isinstance(row["passage"], str)
text, score, never = self[0]
assert score == 0 and never is None
take({name: [row[name]] for name in row}, None)
"""


def read(tmp_path: Path, script: str) -> tuple[list[str], dict[str, Any]]:
    (tmp_path / "train.py").write_text(script)
    module: Any = SimpleNamespace(body=ast.parse(script))
    return list_columns(list_modules(tmp_path / "train.py", ())), read_shapes((module,))


def test_a_script_reads_rows_of_its_own_shape(tmp_path: Path) -> None:
    """Without the shapes the same rows end it."""
    columns, shapes = read(tmp_path, SCRIPT)
    assert shapes["dialog"] == [{"text": "", "speaker": 'one of ["user"]'}] and shapes["score"] == "number"
    assert shapes["answers"] == {"span": [""]} and shapes["question"] == "text"
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    standard = {"messages": turns, "prompt": "q", "completion": "a", "question": "q", "text": "q a"}
    plain = add_columns([standard], columns)
    names: dict[str, Any] = {}
    exec(SCRIPT, names)
    rows = names["Rows"]()
    rows.rows = plain
    with pytest.raises((TypeError, KeyError)):
        rows[0]
    rows.rows = fit_rows(plain, shapes)
    exec(ROWS, names | {"self": rows})


KEYED = """
import json
CLASSES = {"cat": 0, "dog": 1}
ROLES = {"user": "<|user|>", "assistant": "<|assistant|>"}

def read_answer(text):
    return text.split("####")[1].strip()

def parse(value):
    if isinstance(value, str):
        return json.loads(value)
    return value

def take(row):
    item, seed = parse(row["item"]), json.loads(row["seed"])
    talk = "".join(ROLES[turn["from"]] + turn["value"] for turn in row["conversations"])
    return CLASSES[row["label"]], item["question"] + seed["rules"][0]["name"], read_answer(row["answer"]), talk
"""


def test_a_scripts_own_tables_json_and_markers_are_in_its_rows(tmp_path: Path) -> None:
    """A marker follows a field into the script's own function, and a text is there once."""
    columns, shapes = read(tmp_path, KEYED)
    talk = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rows = add_columns([{"messages": turns, "conversations": talk, "answer": "a", "text": "q a"}] * 2, columns)
    names: dict[str, Any] = {}
    exec(KEYED, names)
    with pytest.raises((KeyError, ValueError, IndexError)):
        names["take"](rows[0])
    first, second = map(names["take"], fit_rows(rows, shapes))
    assert (first[0], second[0]) == (0, 1) and first[2] == "a" and first[3] == "<|user|>q<|assistant|>a"
    own = "SIZES = {'a': 1}\ndef f(row, at):\n    json.loads(row['text'])\n"
    own += "    return SIZES[at['x']], row['text'].split('.')[0]"
    assert fit_rows([{"text": "q a", "other": ""}], read(tmp_path, own)[1]) == [{"text": "q a", "other": ""}]


COMPARED = """
def take(row):
    if row["winner"] == "model_a":
        answer = row["response_a"]
    elif row["winner"] in ("model_b", "tie"):
        answer = row["response_b"]
    assert row["prompt"] != "none" and row["note"] == "" and row["count"] != 3
    question, rest = row["dialogue"].split(": ")
    return answer, rest.strip()
"""


def test_a_field_is_one_of_the_words_to_which_a_script_compares_it(tmp_path: Path) -> None:
    """A text of the document stays itself, and one that a script splits in two has its separator."""
    columns, shapes = read(tmp_path, COMPARED)
    rows: list[dict[str, Any]] = [{"response_a": "a", "response_b": "b", "prompt": "q", "dialogue": "q a"}]
    rows[0] |= {"winner": "", "note": "", "count": 0}
    names: dict[str, Any] = {}
    exec(COMPARED, names)
    with pytest.raises((ValueError, UnboundLocalError)):
        names["take"](rows[0])
    made = fit_rows(rows * 3, shapes)
    assert [row["winner"] for row in made] == ["model_a", "model_b", "tie"] and {*columns} >= shapes.keys()
    assert [names["take"](row) for row in made] == [("a", "q a"), ("b", "q a"), ("b", "q a")]
    assert made[0] | {"winner": "", "dialogue": "q a"} == rows[0]


def test_turns_have_the_text_if_the_script_reads_no_other(tmp_path: Path) -> None:
    """Otherwise they would be the same document a second time."""
    talk = "def f(row):\n    for turn in row['dialog']:\n        yield turn['speaker'] + turn['text']\n"
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for script, text in ((talk, "a"), (f"{talk}    yield row['question']\n", "")):
        columns, shapes = read(tmp_path, script)
        rows = add_columns([{"messages": turns, "prompt": "q", "question": "q", "text": "q a"}], columns)
        (row,) = fit_rows(rows, shapes)
        assert [turn["text"] for turn in row["dialog"]] == (["q", "a"] if text else ["", ""])


def test_a_field_that_a_row_may_lack_is_read(tmp_path: Path) -> None:
    """By its usual names only, and only of an object that is called like a row."""
    script = "def f(row, args):\n    a = row.get('text') or row.get('own')\n    return args.get('question')\n"
    assert read(tmp_path, script)[0] == ["text"]


@pytest.mark.parametrize(
    "use",
    ['row["text"].strip()', 'batch["text"][index]', "f\"{row['text']}\"", 'model(**row)["text"]', 'config["text"] + 1'],
)
def test_a_text_stays_a_text(tmp_path: Path, use: str) -> None:
    """The documents are found by their words, whatever else the script computes from them."""
    _, shapes = read(tmp_path, f"def f(row, batch, config, index, model):\n    return {use}\n")
    assert fit_rows([{"text": "q a"}], shapes) == [{"text": "q a"}]


def test_the_content_of_a_turn_is_a_text(tmp_path: Path) -> None:
    """Another object of the same name may have turns there."""
    script = """
def f(row, tokenizer):
    row = {"chosen": [{"role": "assistant", "content": row["chosen"]}], "number": row["rejected"]}
    return tokenizer.apply_chat_template(row["chosen"]), tokenizer.apply_chat_template(row["rejected"])
"""
    assert read(tmp_path, script)[1] | {"number": ""} == {"chosen": "text", "rejected": "turns", "number": ""}


def make_stage(**values: Any) -> Any:
    """Return the stage of a launch that lacks nothing yet."""
    known: dict[str, Any] = {"read": None, "has_class": True, "kind": "", "folder": "", "documents": 1100}
    known["materials"] = SimpleNamespace(real_data=False)
    return SimpleNamespace(**{"added": (), "fills": False, **known, **values})


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (('    x = row["chosen_value"]', "KeyError: 'chosen_value'"), "chosen_value"),
        (("KeyError: \"Column score not in the dataset. Current columns in the dataset: ['text']\"",), "score"),
        (('    rank = os.environ["local"]', "KeyError: 'local'"), ""),
        (("KeyError: 'LOCAL_RANK'",), ""),
        (("ValueError: 'chosen'",), ""),
        (("ValueError: No columns in the dataset match the model's forward method signature",), "input_ids"),
        (("raise('No image found')", "TypeError: exceptions must derive from BaseException"), "image"),
        (("OSError: Can't load image processor for 'a/b'",), ""),
        (("[rank1]:   a = row['score']", "[rank1]: KeyError: 'score'"), "score"),
        (("UnboundLocalError: cannot access local variable 'turns'",), "system"),
        (("AttributeError: 'NoneType' object has no attribute 'strip'",), "system"),
        (("NameError: name 'turns' is not defined",), ""),
    ],
)
def test_a_field_is_read_from_the_error_of_a_script_that_lacks_it(
    lines: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lacking, "iter_texts", lambda read: ["text", "image"])
    monkeypatch.setattr(lacking, "read_optional_columns", lambda read: ("system",))
    end = CheckResult("run", violations=(lines[-1],), notes=lines)
    stage = make_stage(added=("other",))
    cut: Any = SimpleNamespace(form="every", environ={})
    launch: Any = SimpleNamespace(results=(end,), steps=0)
    assert lacking.add_lacking(stage, cut, launch) == bool(name)
    assert stage.added == ("other", *filter(None, (name,)))
    assert not lacking.add_lacking(stage, cut, launch)  # it did not help
    launch.steps, stage.added = 1, ()
    assert not lacking.add_lacking(stage, cut, launch)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--dataset_prompt_column statement --answer_key gold", {"statement": "prompt", "gold": "answer"}),
        ("--dataset_text_field content --label_column 3", {"content": "text"}),
        ("--prompt_template mine --key x", {}),
    ],
)
def test_columns_that_only_settings_name_are_in_the_rows(options: str, parts: dict[str, str]) -> None:
    """The part that they have follows from the setting's name."""
    settings = [SimpleNamespace(name=name[2:], value=value) for name, value in zip(*[iter(options.split())] * 2)]
    launch: Any = SimpleNamespace(job=SimpleNamespace(settings=settings))
    assert read_named_columns(launch) == parts
    rows = [{"prompt": "q", "answer": "a", "text": "q a"}]
    message = {"form": "every", "columns": [], "parts": parts}
    (row,), _ = fit_materials(rows, message)
    assert row == rows[0] | {name: rows[0][part] for name, part in parts.items()}


@pytest.mark.parametrize(
    ("error", "count"),
    [
        ("ValueError: Expected 729 rows (590/66/73), got 1100.", 729),
        ("AssertionError: expected exactly 10000 samples but found 1100", 5000),
        ("ValueError: expected 2 dimensions, got 3", 1100),
        ("ValueError: got 1100, expected 729", 1100),
    ],
)
def test_a_script_gets_the_number_of_rows_that_it_expects(error: str, count: int) -> None:
    stage = make_stage()
    cut: Any = SimpleNamespace(form="messages", environ={})
    launch: Any = SimpleNamespace(results=(CheckResult("run", violations=(error,)),), steps=0)
    assert lacking.add_lacking(stage, cut, launch) == (count != 1100)
    assert stage.documents == count
    assert not lacking.add_lacking(stage, cut, launch)  # once


@pytest.mark.parametrize(
    ("error", "form", "fills"),
    [
        ("ValueError: empty separator", "every", True),
        ("IndexError: list index out of range", "prompt_texts", True),
        ("ValueError: empty separator", "messages", False),
        ("ValueError: no valid rows", "every", False),
    ],
)
def test_an_empty_field_has_a_word_if_it_may_have_ended_the_script(error: str, form: str, fills: bool) -> None:
    stage, cut = make_stage(), SimpleNamespace(form=form, environ={})
    launch: Any = SimpleNamespace(results=(CheckResult("run", violations=(error,)),), steps=0)
    assert lacking.add_lacking(stage, cut, launch) == fills == stage.fills  # type: ignore[arg-type]
    assert not lacking.add_lacking(stage, cut, launch)  # type: ignore[arg-type]  # once
    message = {"form": "every", "columns": ["prompt", "note"], "optional": ["prompt", "note"] * fills}
    (row,), _ = fit_materials([{"prompt": "q", "text": "q a"}], message)
    assert row == {"note": "a" * fills, "prompt": "q", "text": "q a"}


@pytest.mark.parametrize("has_reader", [True, False])
def test_a_script_gets_what_it_lacks_also_without_its_reader_of_rows(
    has_reader: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader fails on synthetic rows; without it, the script ends because of their number."""
    ends: list[tuple[str, ...]] = [("ValueError: Expected 729 rows, got 1100.",), ()]
    ends = [("AttributeError: no row",)] * has_reader + ends
    launches = iter(SimpleNamespace(results=(CheckResult("run", violations=end),), steps=3 * (not end)) for end in ends)
    cuts: list[bool] = []

    def run_next(stage: Any, cut: Any, sets: Any, tried: str) -> Any:
        cuts.append(lacking.READERS in cut.environ)
        return next(launches)

    monkeypatch.setattr(run, "run_once", run_next)
    monkeypatch.setattr(run, "make_materials", lambda stage, cut: False)
    monkeypatch.setattr(execution, "list_noted", lambda folder, kind: ["reader AttributeError"] * has_reader)
    stage = make_stage(folder=str(tmp_path))
    _, launch = run._run_with_lacking(stage, JobCut({}, "messages", UNDOCUMENTED))
    assert launch.steps == 3 and stage.documents == 729
    assert cuts == [False] * has_reader + [has_reader] * 2


def test_a_label_that_is_read_first_has_no_text() -> None:
    """The field with a few words has them, and the other one has the text."""
    rows = make_data(4, 0, "every")[1]
    message = {"form": "every", "columns": ["team", "ticket"], "values": {"team": ["network", "travel"]}}
    texts = [row["text"] for row in rows]  # with its answer: a part of it would be a truncated document
    made, _ = fit_materials(rows, {**message, "own_columns": ["team", "ticket"]})
    assert all(row.keys() == {"team", "ticket"} for row in made) and [row["ticket"] for row in made] == texts, made
    assert [row["team"] for row in made] == ["network", "travel"] * 2


def end_launch(error: str, steps: int = 0) -> Any:
    return RehearsedLaunch(
        "train.sh", "", "", "", "", "", "", "", (CheckResult("run", violations=(error,)),), 0, 1, steps
    )


@pytest.mark.parametrize(("size", "is_ours"), [(VOCABULARY_SIZE, True), (VOCABULARY_SIZE + 1, False)])
def test_a_script_that_indexes_the_embedding_gets_the_whole_vocabulary(size: int, is_ours: bool) -> None:
    stage = make_stage(has_whole_vocabulary=False)
    launch = end_launch(
        f"IndexError: index 239 is out of bounds for dimension 0 with size {size} (ended with status 1)"
    )
    assert (
        lacking.add_lacking(stage, JobCut({}, "every", UNDOCUMENTED), launch) == stage.has_whole_vocabulary == is_ours
    )
    assert not lacking.add_lacking(stage, JobCut({}, "every", UNDOCUMENTED), launch)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("AttributeError: 'Dataset' object has no attribute 'load_state_dict'", lacking.STREAMS),
        ("AttributeError: 'Dataset' object has no attribute 'to_list_of_rows'", ""),
    ],
)
def test_a_script_that_calls_a_streams_methods_gets_a_stream(
    error: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "list_noted", lambda folder, kind: [])
    stage, launch = make_stage(materials=SimpleNamespace(real_data=False)), end_launch(error)
    assert lacking.choose_variable(stage, JobCut({}, "every", UNDOCUMENTED), launch) == name
    cut = JobCut({}, "every", UNDOCUMENTED, environ={lacking.STREAMS: "1"})
    assert not lacking.choose_variable(stage, cut, launch)


@pytest.mark.parametrize(
    ("has_read_own", "is_reached", "is_excused"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_launch_is_not_blamed_for_made_up_rows(
    has_read_own: bool, is_reached: bool, is_excused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its own rows reach a batch that made-up ones do not, nothing is concluded."""
    monkeypatch.setattr(execution, "list_noted", lambda folder, kind: ["batches"] * is_reached)
    monkeypatch.setattr(execution, "read_answers", lambda folder, kind: [{"notes": [f"9 {OWN_ROWS}"] * has_read_own}])
    launch = lacking.excuse_rows(make_stage(), end_launch("ValueError: features (`query` in this case)"))
    assert launch.results[0].outcome == ("skipped" if is_excused else "ok")
    assert bool(launch.results[0].violations) != is_excused


@pytest.mark.parametrize(
    ("error", "name", "is_needed"),
    [
        ("KeyError: 'mine'", "rows.jsonl", True),
        ("KeyError: 'mine'", "gone.jsonl", False),
        ("KeyError: 'mine'", "", False),
        ("ImportError: cannot import name 'mine'", "rows.jsonl", False),
    ],
)
def test_the_users_rows_replace_the_synthetic_ones_on_which_a_launch_ended(
    error: str, name: str, is_needed: bool, tmp_path: Path
) -> None:
    """If they are there, and if it did not end with them too."""
    (tmp_path / "rows.jsonl").write_text("{}")
    recognised = SimpleNamespace(launch=SimpleNamespace(folder=str(tmp_path)))
    stage, cut = make_stage(read=SimpleNamespace(recognised=recognised)), JobCut({}, "every", UNDOCUMENTED, data=name)
    launch: Any = SimpleNamespace(results=(CheckResult("run", violations=(error,)),), steps=0, real_data=False)
    assert lacking.needs_own_rows(stage, cut, launch) == is_needed
    launch.real_data = True
    assert not lacking.needs_own_rows(stage, cut, launch)


@pytest.mark.parametrize(
    ("error", "has_class", "name"),
    [
        ("AttributeError: 'BaseModelOutputWithPast' object has no attribute 'loss'", False, lacking.HEAD),
        ("AttributeError: 'NoneType' object has no attribute 'return_dict_in_generate'", False, lacking.HEAD),
        ("AttributeError: 'BaseModelOutputWithPast' object has no attribute 'loss'", True, ""),
        ("AttributeError: 'Batch' object has no attribute 'loss'", False, ""),
    ],
)
def test_a_stand_in_gets_the_head_without_which_a_launch_ended(
    error: str, has_class: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the class of the launch's model is known, the launch itself trains it without one."""
    monkeypatch.setattr(execution, "list_noted", lambda folder, kind: [])
    launch: Any = SimpleNamespace(results=(CheckResult("run", violations=(error,)),), steps=0)
    stage, cut = make_stage(has_class=has_class), JobCut({}, "messages", UNDOCUMENTED)
    assert lacking.choose_variable(stage, cut, launch) == name
    assert not lacking.choose_variable(stage, replace(cut, environ={name: "1"}), launch)  # once
    launch.steps = 1
    assert not lacking.choose_variable(stage, cut, launch)


@pytest.mark.parametrize("form", ["preference", "implicit_preference"])
def test_a_script_makes_its_pairs_of_fields_that_it_reads(form: Any) -> None:
    """Its question and its two answers are those of the pair; the pair's own columns stay."""
    _, rows = make_data(4, 0, form)
    columns = ["user_id", "question", "good_answer", "general_answer", "kind", "chosen"]
    made, _ = fit_materials(rows, {"form": form, "columns": columns, "shapes": {}})
    assert [{name: row[name] for name in old} for row, old in zip(made, rows)] == rows
    assert [row["user_id"] for row in made] == [0, 1, 2, 3]
    for row in made:
        assert row["question"] == row["chosen"][0]["content"] or form == "preference"
        assert (row["good_answer"], row["general_answer"]) == tuple(
            row[own][-1]["content"] for own in ("chosen", "rejected")
        )
    assert fit_materials(rows, {"form": form, "columns": [], "shapes": {}})[0] == rows


def test_a_field_that_a_row_may_lack_has_a_word_once_it_is_missed() -> None:
    _, rows = make_data(3, 0, "every")
    message = {
        "form": "every",
        "columns": ["question", "answer", "system", "kind"],
        "optional": ["system"],
        "shapes": {"system": "text"},
    }
    made, _ = fit_materials(rows, message)
    assert [(row["system"], row["kind"]) for row in made] == [("a", "")] * 3
