"""The user's own rows: their turns are found in batches, wrong labels are named by role, unknown text is not judged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from attncheck.rehearsal.worker import conversations, light, own_labels, own_turns
from attncheck.rehearsal.worker.labels import IGNORED, read_labels
from attncheck.rehearsal.worker.vocabulary import NOUNS
from tests.rehearsal import own_models

Turns = list[tuple[str, str]]
WORDS = NOUNS.split()[:48]


def make_turns(number: int, chance: random.Random) -> Turns:
    """Return a conversation: every third has a system turn that others share, every fourth a short answer."""
    question, answer = (" ".join(chance.choices(WORDS, k=chance.randint(9, 15))) for _ in range(2))
    turns = [("system", "You are a helpful river.")] if number % 3 == 0 else []
    turns += [("user", question), ("assistant", answer if number % 4 else "Yes.")]
    return turns if number % 2 else [*turns, ("user", "And the stone? 🪨"), ("assistant", f"{answer} é 石")]


def encode(tokenizer: Any, turns: Turns, learned: Sequence[str] = ("assistant",)) -> tuple[list[int], list[int]]:
    """Return the tokens and labels of a conversation, as a right trainer makes them."""
    tokens: list[int] = []
    labels: list[int] = []
    for role, text in turns:
        header = tokenizer.encode(f"<|im_start|>{role}\n", add_special_tokens=False)
        body = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        line = tokenizer.encode("\n", add_special_tokens=False)
        tokens += [*header, *body, *line]
        labels += [IGNORED] * len(header) + (body if role in learned else [IGNORED] * len(body))
        labels += [IGNORED] * len(line)
    return tokens, labels


class Own:
    """A folder with the user's rows, and their conversations."""

    def __init__(self, folder: Path, others: Sequence[Any] = ()) -> None:
        """Write the rows; `others` are rows of another form."""
        own_models.save_model(folder / "model", own_models.TEMPLATE)
        (folder / "data").mkdir()
        self.folder, self.tokenizer = folder, own_models.make_tokenizer()
        chance = random.Random(0)
        self.turns = [make_turns(number, chance) for number in range(24)]
        rows = [{"messages": [{"role": role, "content": text} for role, text in turns]} for turns in self.turns]
        path = folder / "own.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, *others]))
        own_turns.lay_rows(str(path), folder, self.tokenizer, 0)

    def lay(self, rows: Sequence[Any]) -> None:
        """Write other rows."""
        path = self.folder / "other.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        own_turns.lay_rows(str(path), self.folder, self.tokenizer, 0)

    def judge(self, rows: Sequence[tuple[list[int], list[int]]], targets: Any = "assistant") -> dict[str, Any] | str:
        """Return what is said of rows of tokens and labels."""
        calls = [{"input_ids": [tokens], "labels": [labels]} for tokens, labels in rows]
        return read_labels(self.folder, calls, targets, False, own_labels.OwnTurnFinder)

    def list_problems(self, rows: Sequence[tuple[list[int], list[int]]], targets: Any = "assistant") -> list[str]:
        """Return the problems of rows whose turns are found."""
        answer = self.judge(rows, targets)
        assert not isinstance(answer, str), answer
        return list(answer["problems"])


@pytest.fixture
def own(tmp_path: Path) -> Own:
    return Own(tmp_path)


def pack(rows: Sequence[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Return rows as one."""
    return [([token for tokens, _ in rows for token in tokens], [label for _, labels in rows for label in labels])]


def test_right_labels_have_no_problem(own: Own) -> None:
    rows = [encode(own.tokenizer, turns) for turns in own.turns]
    answer = own.judge(rows)
    assert not isinstance(answer, str) and answer["problems"] == []
    counts = {count["role"]: (count["learned"], count["tokens"]) for count in answer["counts"]}
    assert counts["assistant"][0] == counts["assistant"][1] > 200 and counts["user"][0] == 0 < counts["system"][1]
    assert "unknown" not in counts
    everything = [(tokens, tokens) for tokens, _ in rows]
    assert own.list_problems(everything, "all") == own.list_problems(pack(rows[:6])) == []


FAULTS: dict[str, tuple[Callable[[Any, Turns], tuple[list[int], list[int]]], str]] = {
    "a template that marks the question": (lambda t, turns: encode(t, turns, ("user",)), "user turns are learned"),
    "system and answer": (lambda t, turns: encode(t, turns, ("system", "assistant")), "system turns are learned"),
    "no mask": (lambda t, turns: (encode(t, turns)[0], encode(t, turns)[0]), "user turns are learned"),
    "answers are cut off": (
        lambda t, turns: ((part := encode(t, [turn for turn in turns if turn[0] != "assistant"]))[0], part[1]),
        "nothing is learned",
    ),
    "no end": (
        lambda t, turns: (
            (part := encode(t, turns))[0],
            [IGNORED if label == t.convert_tokens_to_ids("<|im_end|>") else label for label in part[1]],
        ),
        "the token that ends an assistant turn is never learned",
    ),
    "one early": (
        lambda t, turns: ((part := encode(t, turns))[0], [*part[1][1:], IGNORED]),
        "labels are off by one",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_labels_are_named(own: Own, name: str) -> None:
    fault, message = FAULTS[name]
    problems = own.list_problems([fault(own.tokenizer, turns) for turns in own.turns])
    assert any(message in problem for problem in problems), problems


def test_text_that_belongs_to_no_known_turn_is_not_judged(tmp_path: Path) -> None:
    """A row with calls of tools, packed between others: its answers are learned, and are not the chat template's."""
    calls = [{"type": "function", "function": {"name": "search", "arguments": {"query": "stone"}}}]
    text = "a river of silver and a lion of stone near the golden castle, and many more words than a template has"
    other = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "tool_calls": calls}]}
    own = Own(tmp_path, [other])
    rows = [encode(own.tokenizer, turns) for turns in own.turns[:4]]
    unknown = encode(own.tokenizer, [("user", text), ("assistant", f"{text} search(stone)")])
    answer = own.judge([*pack([rows[0], unknown, rows[1]]), *pack([unknown, rows[2], rows[3]])])
    assert not isinstance(answer, str) and answer["problems"] == []
    assert next(count["tokens"] for count in answer["counts"] if count["role"] == "unknown") > 20
    assert isinstance(own.judge([unknown]), str)  # no turn is known


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"prompt": "a", "completion": "b"}, ["user", "assistant"]),
        ({"instruction": "a", "input": "b", "output": "c", "system": "d"}, ["system", "user", "user", "assistant"]),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, ["user", "assistant"]),
        (
            {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]},
            ["user", "assistant"],
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nb\n</think>c"}]},
            ["user", "thinking", "assistant"],
        ),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}]}, []),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "b"}]}, []),
        ({"text": "a"}, []),
        ("a line", []),
        ({"messages": [{"role": "user", "content": "a"}, None]}, []),
    ],
)
def test_the_turns_of_a_row(row: Any, roles: list[str]) -> None:
    assert [role for role, _ in own_turns.read_conversation(row)] == roles


@pytest.mark.parametrize(("count", "problems"), [(1, 0), (3, 1)])
def test_one_token_that_ends_a_row_is_not_padding(own: Own, count: int, problems: int) -> None:
    """Rows are padded with the EOS token, which also follows the template's text."""
    rows = []
    for turns in own.turns[:4]:
        tokens, labels = encode(own.tokenizer, turns)
        ends = [own.tokenizer.eos_token_id] * count
        rows.append(([*tokens, *ends], [*labels, *ends]))
    assert len([problem for problem in own.list_problems(rows) if "padding is learned" in problem]) == problems


def test_a_column_that_the_launch_does_not_read_hides_no_other(own: Own) -> None:
    """Rows have a system turn and a solution that are not in the batch, before and between those that are."""
    chance = random.Random(1)
    texts = [[" ".join(chance.choices(WORDS, k=9)) for _ in range(3)] for _ in range(12)]
    own.lay([{"system": f"{b} {a}", "question": a, "solution": b, "output": c} for a, b, c in texts])
    answer = own.judge([encode(own.tokenizer, [("user", a), ("assistant", c)]) for a, _, c in texts])
    assert not isinstance(answer, str) and answer["problems"] == []
    assert {count["role"] for count in answer["counts"]} == {"user", "assistant", "end", "other_end", "template"}


@pytest.mark.parametrize(
    ("row", "columns", "turns"),
    [
        ({"a": "x", "b": "y", "answer": "z"}, {"a": "user", "b": "assistant"}, [("user", "x"), ("assistant", "y")]),
        (
            {"a": {"b": "x"}, "c.d": "y", "messages": [{"role": "user", "content": "z"}]},
            {"a.b": "user", "c.d": "assistant"},
            [("user", "x"), ("assistant", "y")],
        ),
        (
            {"a": [{"role": "user", "content": "x"}], "b": "y"},
            {"a": "user", "b": "assistant"},
            [("user", "x"), ("assistant", "y")],
        ),
        ({"instruction": "x", "output": "y", "history": [["q", "a"]]}, {}, []),
        ({"a": "x"}, {"a.b": "user", "c": "assistant"}, []),
    ],
)
def test_columns_that_a_launch_names(row: Any, columns: dict[str, str], turns: Turns) -> None:
    assert [*own_turns.read_conversation(row, columns)] == turns


def test_rows_that_only_the_test_would_truncate_are_left_out(tmp_path: Path) -> None:
    own = Own(tmp_path)
    lengths = [len(encode(own.tokenizer, turns)[0]) for turns in own.turns]
    rows, remark, known = own_turns.lay_rows(str(tmp_path / "own.jsonl"), tmp_path, own.tokenizer, 90)
    assert 0 < len(rows) < len(own.turns) and "at most 90 tokens" in remark
    kept = [encode(own.tokenizer, [(m["role"], m["content"]) for m in row["messages"]])[0] for row in rows]
    assert max(map(len, kept)) <= 90 < max(lengths)
    assert known == {"has_turns": True, "pairs": False, "is_mixed": False, "chooses": False}
    (tmp_path / "chosen.jsonl").write_text(
        json.dumps(
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": False}]}
        )
    )
    assert own_turns.lay_rows(str(tmp_path / "chosen.jsonl"), tmp_path, own.tokenizer, 0)[2]["chooses"]


def test_conversations_for_the_synthetic_tokenizer_have_all_parts(tmp_path: Path) -> None:
    """Its files are read without transformers, so nothing is rendered."""
    assert conversations.list_parts(light.make_tokenizer(tmp_path / "model"), "messages") == {"system", "turns"}
