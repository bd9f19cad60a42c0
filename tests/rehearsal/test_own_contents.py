"""The launch's own rows are read up to their batches: what they hold is learned, or a line says what is lost."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from attncheck.rehearsal.watcher import own_rows
from attncheck.rehearsal.worker.materials import make_word_tokenizer
from tests.rehearsal.staging import ForkServer, ask_for_materials, make_argv

WORDS = ("onion", "barley", "carrot", "lentil", "garlic", "pepper", "tomato", "walnut", "ginger", "spinach")
ROLES = ("human", "gpt")
FORM = "Write\n<think>\n...\n</think>\n<answer>\n...\n</answer>"


def make_row(number: int) -> dict[str, Any]:
    words = [WORDS[(number * step + step) % len(WORDS)] for step in range(1, 5)]
    texts = " ".join(words), " ".join(f"{word}s" for word in words)
    turns = [{"from": role, "value": text} for role, text in zip(ROLES, texts)]
    return {"conversations": turns, "stars": number % 5, "number": str(number)}


@pytest.fixture
def encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the encoding of the fork's tokenizer, in a fork with 10 of the launch's own rows."""
    tokenizer = make_word_tokenizer(words=(*WORDS, *(f"{word}s" for word in WORDS), *map(str, range(20))))
    tokenizer.save(str(tmp_path / own_rows.TOKENIZER))
    monkeypatch.setenv("ATTNCHECK_OWN_MODEL", str(tmp_path))
    rows = [make_row(number) for number in range(10)]
    monkeypatch.setattr(
        own_rows,
        "OWN",
        [{"path": str(tmp_path / "own-rows.json"), "rows": rows, "names": ["rows.jsonl"], "faults": []}],
    )
    return lambda text: tokenizer.encode(text).ids


def batch_rows(rows: list[list[int]], labels: Any = None) -> list[dict[str, torch.Tensor]]:
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    labels = ids if labels is None else torch.tensor(labels)
    return [{"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}]


def judge(batches: Any, columns: tuple[str, ...] = ()) -> dict[str, Any]:
    dataset = type("Rows", (), {"column_names": list(columns)})()
    return own_rows.judge(*own_rows._read_batches(batches, dataset))


def write_turns(row: dict[str, Any], kept: tuple[str, ...]) -> str:
    return " ".join(["<|system|>", *(turn["value"] for turn in row["conversations"] if turn["from"] in kept)])


@pytest.mark.parametrize(
    ("kept", "kind", "count"), [(ROLES, "violations", 0), ((), "violations", 2), (("human",), "warnings", 1)]
)
def test_roles_that_are_left_out(encode: Any, kept: tuple[str, ...], kind: str, count: int) -> None:
    """Distinct rows in, equal rows out; a model's own role alone may be lost, too."""
    answers = judge(batch_rows([encode(write_turns(make_row(number), kept)) for number in range(10)]))
    assert len(answers.get(kind, ())) == count, answers
    assert not any(word in json.dumps(answers) for word in WORDS)  # no text of the rows


@pytest.mark.parametrize(
    ("labels", "count"),
    [(lambda n: n % 5, 0), (lambda n: 0, 1), (lambda n: float(n == 3), 0), (lambda n: n >= 10, 1)],  # both of each row
)
def test_labels_without_information(encode: Any, labels: Any, count: int) -> None:
    rows = [encode(write_turns(make_row(number % 10), ROLES)) for number in range(20)]
    answers = judge(batch_rows(rows, [labels(number) for number in range(20)]))
    assert len(answers["violations"]) == count, answers


@pytest.mark.parametrize(("first", "count"), [(2, 0), (99, 1)])
def test_rows_without_a_label(encode: Any, first: int, count: int) -> None:
    ids = batch_rows([encode(write_turns(make_row(number), ROLES)) for number in range(10)])[0]["input_ids"]
    labels = ids.clone()
    labels[:, :first] = -100
    answers = judge(batch_rows(ids.tolist(), labels.tolist()))
    assert len(answers["violations"]) == count, answers


@pytest.mark.parametrize(("fault", "count"), [("", 0), ("cut", 1), ("shuffled", 1)])
def test_the_two_sides_of_pairs(encode: Any, fault: str, count: int) -> None:
    """Sides that differ only behind the truncation, or that belong to two prompts, are a fault."""
    prompts = [encode(" ".join(turn["value"] for turn in make_row(number)["conversations"])) for number in range(10)]
    chosen, rejected = ([[*prompt, *encode(f"1 {end}")] for prompt in prompts] for end in ("2", "3"))
    if fault == "cut":
        chosen, rejected = ([row[:-1] for row in rows] for rows in (chosen, rejected))
    if fault == "shuffled":
        rejected = [*rejected[3:], *rejected[:3]]
    answers = judge(batch_rows([*chosen, *rejected]), ("chosen_ids", "rejected_ids"))
    assert len(answers["violations"]) == count, answers


class Model(torch.nn.Linear):
    def save_pretrained(self) -> None: ...

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids.float())


def test_the_calls_of_a_model_without_a_loader(encode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call in training is one batch, until all rows were read twice."""
    kind, ended = type("Kind", (Model,), {}), list[int]()
    monkeypatch.setattr(own_rows, "end", lambda rows: ended.append(len(rows)))
    rows, model = own_rows.watch_calls(kind), kind(3, 1)
    for training, number in ((False, 1), *[(True, number) for number in range(1, 6)]):
        model.train(training)
        model(input_ids=torch.full((4, 3), number))
    assert ended == [20] and rows[0] == ((1, 1, 1), None)


@pytest.mark.parametrize(("moved", "count"), [(0, 0), (3, 1)])
@pytest.mark.parametrize("part", ["texts", "labels", "numbers"])
def test_what_is_joined_wrongly(encode: Any, part: str, moved: int, count: int) -> None:
    """The answer, or the label, of another row."""
    draw, words = random.Random(0), [*WORDS, *(f"{word}s" for word in WORDS)]
    rows: list[dict[str, Any]] = [
        {name: " ".join(draw.sample(words, 5)) for name in ("ask", "tell")} for _ in range(20)
    ]
    rows = [row | {"stars": n * n % 5, "weight": n / 8, "label": n % 2} for n, row in enumerate(rows)]
    own_rows.OWN[0]["rows"] = rows
    others = [*rows[moved:], *rows[:moved]]
    if part == "texts":
        batches = batch_rows([[*encode(own["ask"]), *encode(other["tell"])] for own, other in zip(rows, others)])
    else:
        labels = [other[{"labels": "stars", "numbers": "weight"}[part]] for other in others]
        batches = batch_rows([encode(own["ask"]) for own in rows], labels)
    answers = judge(batches)
    assert len(answers["violations"]) == count, answers


@pytest.mark.parametrize(("kept", "kind"), [(("ask", "answer"), "notes"), (("ask",), "warnings")])
def test_answers_that_are_left_out(encode: Any, kept: tuple[str, ...], kind: str) -> None:
    draw, words = random.Random(0), [*WORDS, *(f"{word}s" for word in WORDS)]
    rows = [{name: " ".join(draw.sample(words, 5)) for name in ("ask", "answer", "answer_source")} for _ in range(20)]
    own_rows.OWN[0]["rows"] = rows
    answers = judge(batch_rows([encode(" ".join(row[name] for name in kept)) for row in rows]))
    assert not answers["violations"] and ("no words of 'answer'" in json.dumps(answers)) == (kind == "warnings"), (
        answers
    )
    assert bool(answers.get("warnings")) == (kind == "warnings")


@pytest.mark.parametrize(("name", "kind"), [("reply", "violations"), ("stars", "notes")])
def test_a_column_that_no_row_has(encode: Any, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {}
    monkeypatch.setattr(own_rows, "leave", lambda own: answers.setdefault("first", own))
    monkeypatch.setattr(os, "_exit", lambda status: None)
    row = make_row(0)
    try:
        row["reply"]
    except KeyError as error:
        error.args = (name,)
        own_rows.end([], error)
    assert [*answers["first"]] == [kind] and "test_own_contents.py:" in answers["first"][kind][0]


@pytest.mark.parametrize(("encoding", "count"), [("ascii", 1), ("utf-8", 0)])
def test_characters_that_opening_drops(encode: Any, encoding: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps({"text": "crème brûlée"}, ensure_ascii=False), encoding="utf-8")
    options = {"encoding": encoding, "errors": "ignore"}
    own_rows.shorten(tmp_path / "own.jsonl", open, sys._getframe(), options)
    assert len(own_rows.OWN[0]["faults"]) == count and own_rows.OWN[0]["rows"][-1] == {"text": "crème brûlée"}


def test_the_rehearsals_rows_are_not_the_launchs_own(
    encode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, is_made in (("stage", True), ("user", False)):
        (tmp_path / folder / "data").mkdir(parents=True)
        (tmp_path / folder / "data" / "train.jsonl").touch()
        monkeypatch.setenv("ATTNCHECK_ROWS", str(tmp_path / "stage" / "data" / "train.jsonl"))
        assert own_rows._is_made(tmp_path / folder / "data") is is_made


@pytest.mark.parametrize("is_doubled", [True, False])
def test_prompts_that_are_put_before_texts_that_have_them(encode: Any, is_doubled: bool) -> None:
    draw, words = random.Random(0), [*WORDS, *(f"{word}s" for word in WORDS)]
    prompts = [" ".join(draw.sample(words, 9)) for _ in range(10)]
    own_rows.OWN[0]["rows"] = [{"text": f"{prompt} {draw.choice(words)}"} for prompt in prompts]
    before = prompts if is_doubled else [""] * 10
    texts = [f"{prompt} {row['text']}" for prompt, row in zip(before, own_rows.OWN[0]["rows"])]
    answers = judge(batch_rows([encode(text) for text in texts]))
    assert len(answers["violations"]) == is_doubled, answers


def form(pattern: str) -> Any:
    def reward(completions: list[str], **columns: Any) -> list[float]:
        import re

        return [float(re.match(pattern, text.strip()) is not None) for text in completions]

    return reward


def correct(completions: list[str], number: list[str], **columns: Any) -> list[float]:
    return [float(own in text) for text, own in zip(completions, number)]


def never(completions: list[str], number: list[str], **columns: Any) -> list[float]:
    return [float(own == f"{text}!") for text, own in zip(completions, number)]


def brief(completions: list[str], **columns: Any) -> list[float]:
    return [-float(len(text)) for text in completions]


def swallow(completions: list[str], expected: list[Any], **columns: Any) -> list[float]:
    rewards = []
    for text, own in zip(completions, expected):
        try:
            rewards.append(float(text == str(json.loads(own)) if columns["is_wrong"] else json.loads(text) == own))
        except Exception:
            rewards.append(0.0)
    return rewards


@pytest.mark.parametrize("is_wrong", [True, False])
def test_an_error_that_a_reward_catches_each_time(is_wrong: bool, encode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the completion, which is no JSON, is what a reward catches."""
    answers: dict[str, Any] = {}
    monkeypatch.setattr(own_rows, "leave", answers.update)

    def reward(completions: list[str], expected: list[Any], **columns: Any) -> list[float]:
        return swallow(completions, expected, is_wrong=is_wrong)

    own_rows.judge_rewards([reward], [{"prompt": "Sort.", "expected": {"a": n}} for n in range(10)])
    assert len(answers["violations"]) == is_wrong and ("catches TypeError" in json.dumps(answers)) == is_wrong, answers


def right_order(completions: list[str], expected: list[Any], **columns: Any) -> list[float]:
    return [float(text == f"json:{json.dumps(own)}") for text, own in zip(completions, expected)]


def test_a_reward_for_a_form_of_its_own_is_no_fault(encode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No completion that is made may have it, unless the prompt shows the form."""
    answers: dict[str, Any] = {}
    monkeypatch.setattr(own_rows, "leave", answers.update)
    own_rows.judge_rewards([right_order], [{"prompt": "Sort.", "expected": {"a": n}} for n in range(10)])
    assert not answers["violations"] and "right_order" in answers["notes"][1]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (form(r"^<think>.*</think>\s*<answer>.*</answer>$"), 1),
        (form(r"(?s)^<think>.*</think>\s*<answer>.*</answer>$"), 0),
        (correct, 0),
        (brief, 0),
        (never, 1),
    ],
)
def test_rewards_that_nothing_earns(encode: Any, function: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `.` that matches no line break never matches the form that the prompt shows."""
    answers: dict[str, Any] = {}
    monkeypatch.setattr(own_rows, "leave", answers.update)
    own_rows.judge_rewards([function], [{"prompt": FORM, "number": str(number)} for number in range(10)])
    assert len(answers["violations"]) == count, answers


def test_the_launchs_options_replace_the_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCHECK_OWN", json.dumps({"max_length": "96", "data": "rows.jsonl", "block_size": ""}))
    words = ["--max-length=128", "--data", "/made/train.jsonl", "--block_size", "128", "--packing"]
    assert own_rows._restore(words) == ["--max-length", "96", "--data", "rows.jsonl", "--packing"]


SCRIPT = """\
import argparse, json
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--max_length", type=int)
options, _ = parser.parse_known_args()
tokenizer = AutoTokenizer.from_pretrained("someone/model")
rows = [json.loads(line) for line in open("{rows}")]
collate = lambda rows: tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt",
                                 truncation=True, max_length=options.max_length)
next(iter(DataLoader(rows, 2, collate_fn=collate)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return materials for a script with a file of rows."""
    folder = tmp_path_factory.mktemp("stage")
    texts = [" ".join(["onion"] * 5 + [turn["value"] for turn in make_row(n)["conversations"]]) for n in range(10)]
    (folder / "user.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    assert "answer" in ask_for_materials(folder, documents=20, own_files=[str(folder / "user.jsonl")])
    return folder


@pytest.mark.parametrize(("length", "count"), [("3", 1), ("12", 0)])
def test_a_scripts_own_rows_are_read_in_a_fork(
    server: ForkServer, tmp_path: Path, folder: Path, length: str, count: int
) -> None:
    """The fork has the launch's own length, and the launch continues with the rehearsal's rows."""
    script, watch = tmp_path / "train.py", tmp_path / "watch"
    script.write_text(SCRIPT.replace("{rows}", str(folder / "user.jsonl")))
    watch.mkdir()
    made = str(folder / "data" / "train.jsonl")
    environ = {"ATTNCHECK_ROWS": made, "ATTNCHECK_MODEL": str(folder / "model"), "ATTNCHECK_WATCH": str(watch)}
    environ |= {"ATTNCHECK_OWN": json.dumps({"max_length": length}), "ATTNCHECK_OWN_MODEL": str(folder / "own-model")}
    ended = server.run(make_argv(folder, "--max_length 128", 8, script), environ, watch, 1)
    assert ended["statuses"] == [0], ended
    answers = json.loads((watch / "own-rows.json").read_text())
    assert len(answers["violations"]) == count, answers
    assert "10 of the launch's own rows (user.jsonl)" in answers["notes"][0]
