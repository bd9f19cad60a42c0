"""`attncheck labels`: faults in labels are named by role, and right labels are not blamed, whatever the template."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from attncheck.core.launch import Source
from attncheck.lint import inputs
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal.labels import _note_sound
from attncheck.rehearsal.watcher.hooks import note_prompt, watch_training
from attncheck.rehearsal.watcher.recorder import UNCLEAR, Recorder
from attncheck.rehearsal.worker import conversations, light, materials, turns
from attncheck.rehearsal.worker.labels import (
    IGNORED,
    Row,
    TurnFinder,
    assign_roles,
    count_roles,
    judge_rows,
    read_placeholders,
    span_row,
    strip_blanks,
)
from attncheck.rehearsal.worker.vocabulary import MADE, NOUNS
from tests.conftest import Run
from tests.rehearsal.staging import SCRIPT, SCRIPTS
from tests.rehearsal.test_command import OPTIONS
from tests.snapshots import laptop

PARTS = frozenset({"system", "turns"})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return materials.make_tokenizer(True)


class Stage:
    """Rows of conversations as a right trainer makes them: answers learned, with the token that ends each."""

    def __init__(
        self, folder: Path, tokenizer: Any, parts: frozenset[str] = PARTS, words: tuple[str, ...] = MADE.texts
    ) -> None:
        """Make the conversations and their rows."""
        self.tokenizer, self.has_reasoning = tokenizer, "reasoning" in parts
        self.conversations = list(conversations.make_conversations(6, 0, list(words), parts))
        (folder / turns.FILE).write_text(json.dumps(self.conversations))
        self.finder = TurnFinder(folder)
        self.rows = [self.make_row(conversation) for conversation in self.conversations]

    def make_row(self, conversation: turns.Conversation) -> Row:
        """Return one conversation's row, its answers and their ends learned."""
        messages = conversations.make_row(conversation, "messages", self.has_reasoning)["messages"]
        encoded = self.tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        tokens = list(encoded["input_ids"])
        labels = [
            token if learned else IGNORED for token, learned in zip(tokens, encoded["assistant_masks"], strict=True)
        ]
        return self.read(tokens, labels)

    def read(self, tokens: list[int], labels: list[int]) -> Row:
        """Return a row with the roles of its tokens."""
        row = Row(tokens, labels, [self.tokenizer.decode([token]) for token in tokens])
        row.roles = ["unknown"] * len(tokens)
        assign_roles(row, self.finder, self.tokenizer)
        return row

    def judge(self, rows: list[Row], targets: Any = "assistant") -> list[str]:
        """Return the problems."""
        return judge_rows(rows, self.tokenizer, targets)[0]


@pytest.fixture
def stage(tmp_path: Path, tokenizer: Any) -> Stage:
    return Stage(tmp_path, tokenizer)


@pytest.mark.parametrize("own", [False, True])
def test_a_tokenizer_of_files_reads_as_the_class_of_transformers(tmp_path: Path, tokenizer: Any, own: bool) -> None:
    whole = make_byte_tokenizer(*TEMPLATES["llama 3"]) if own else tokenizer
    if own:
        whole.save_pretrained(tmp_path / "model")
    else:
        light.make_tokenizer(tmp_path / "model")
    read = light.FileTokenizer(tmp_path / "model")
    assert [getattr(read, f"{name}_id") for name in light.NAMES] == [getattr(whole, f"{n}_id") for n in light.NAMES]
    assert read.all_special_ids == set(whole.all_special_ids) | set(whole.added_tokens_decoder)
    tokens = whole.encode("w3 w5 <|user|> river", add_special_tokens=False)
    assert read.decode(tokens, skip_special_tokens=False).split() == whole.decode(tokens).split()


def test_a_model_that_is_written_without_torch_loads_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    light.save_model(light.make_tokenizer(tmp_path / "model"), 0, tmp_path / "model")
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    model, loaded = read
    assert not any(loaded.values()), loaded
    assert all(value.isfinite().all() for value in model.parameters())


def test_right_labels_have_no_problem_and_every_role_is_counted(stage: Stage) -> None:
    assert stage.judge(stage.rows) == []
    counts = {count.role: count for count in count_roles(stage.rows)}
    assert {"system", "user", "assistant", "end", "other_end", "template"} <= counts.keys()
    assert counts["assistant"].learned == counts["assistant"].tokens
    assert counts["end"].learned == counts["end"].tokens == 12
    assert counts["user"].learned == counts["system"].learned == 0
    words = sum(len(text.split()) for turns in stage.conversations for role, text in turns if role == "assistant")
    assert counts["assistant"].tokens == words


def test_spans_hold_every_token_in_order(stage: Stage) -> None:
    row = stage.rows[0]
    spans = span_row(row, stage.tokenizer)
    assert sum(span.tokens for span in spans) == len(row.tokens)
    assert [span.role for span in spans if span.learned] == ["assistant", "end", "assistant", "end"]


def relabel(stage: Stage, change: Callable[[Row, int], int]) -> list[Row]:
    """Return the rows with each label replaced by `change(row, place)`."""
    return [stage.read(row.tokens, [change(row, place) for place in range(len(row.tokens))]) for row in stage.rows]


def keep_if(test: Callable[[Row, int], bool]) -> Callable[[Row, int], int]:
    return lambda row, place: row.labels[place] if test(row, place) else IGNORED


def is_last_answer(row: Row, place: int) -> bool:
    last = [start for _, start, _, role in row.turns if role == "assistant"][-1]
    return place >= last


FAULTS: dict[str, tuple[Callable[[Row, int], int], str]] = {
    "nothing is learned": (lambda row, place: IGNORED, "nothing is learned"),
    "everything is learned": (lambda row, place: row.tokens[place], "user turns are learned"),
    "the mask is inverted": (
        lambda row, place: row.tokens[place] if row.labels[place] == IGNORED else IGNORED,
        "no token of the assistant turns is learned",
    ),
    "the system turn is learned": (
        lambda row, place: row.tokens[place] if row.roles[place] == "system" else row.labels[place],
        "system turns are learned",
    ),
    "the end is not learned": (keep_if(lambda row, place: row.roles[place] != "end"), "does not learn to stop"),
    "labels are shifted already": (
        lambda row, place: [*row.labels[1:], IGNORED][place],
        "off by one: the label of a token is the next token",
    ),
    "labels are shifted back": (
        lambda row, place: [IGNORED, *row.labels[:-1]][place],
        "off by one: the label of a token is the token before",
    ),
    "the mask is one late": (
        lambda row, place: row.tokens[place] if place and row.labels[place - 1] != IGNORED else IGNORED,
        "the mask is one token late",
    ),
    "the mask is one early": (
        lambda row, place: row.tokens[place] if row.labels[place + 1 : place + 2] > [IGNORED] else IGNORED,
        "the mask is one token early",
    ),
    "the last turn alone": (keep_if(is_last_answer), "only the last assistant turn"),
    "the end of a row is not learned": (
        keep_if(lambda row, place: place <= row.turns[-1][1] or row.roles[place] != "end"),
        "the end of 6 of 6 rows' last answers is not learned",
    ),
    "other tokens": (
        lambda row, place: (row.labels[place] + 1) % 40 if row.labels[place] != IGNORED else IGNORED,
        "labels differ from the token at their position",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(stage: Stage, name: str) -> None:
    change, message = FAULTS[name]
    problems = stage.judge(relabel(stage, change))
    assert any(message in problem for problem in problems), problems


def test_padding_that_is_learned_is_named(stage: Stage) -> None:
    pad = stage.tokenizer.pad_token_id
    rows = [stage.read(row.tokens + [pad] * 3, row.labels + [pad] * 3) for row in stage.rows]
    assert any("padding is learned: 18 of 18" in problem for problem in stage.judge(rows))
    rows = [stage.read(row.tokens + [pad] * 3, row.labels + [IGNORED] * 3) for row in stage.rows]
    assert stage.judge(rows) == []


def test_placeholders_of_pictures_that_are_learned_are_named(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"image_token_index": 150, "video_token_id": 151, "hidden_size": 8})
    )
    placeholders = read_placeholders(tmp_path / "config.json")
    assert placeholders == {150, 151}
    rows = []
    for label in (IGNORED, 150):
        first = stage.rows[0]
        tokens, labels = [150, 150, *first.tokens], [label, label, *first.labels]
        row = Row(tokens, labels, ["<image>"] * 2 + [stage.tokenizer.decode([token]) for token in first.tokens])
        row.roles = ["unknown"] * len(tokens)
        assign_roles(row, stage.finder, stage.tokenizer, placeholders)
        assert [role for role in row.roles if role == "picture"] == ["picture"] * 2
        rows.append(row)
    right, wrong = rows
    assert not any("placeholders" in problem for problem in stage.judge([right]))
    assert any("placeholder tokens are learned: 2 of 2" in problem for problem in stage.judge([wrong]))
    # TRL 1.16.0's collator of pictures documents labels of every token, placeholders too (trainer/sft_trainer.py).
    _, notes = judge_rows([wrong], stage.tokenizer, "all")
    assert any("placeholder tokens are learned: 2 of 2" in note for note in notes)


def test_two_beginnings_are_named_and_one_is_not(stage: Stage) -> None:
    begin = stage.tokenizer.bos_token_id
    for count in (1, 2):
        rows = [stage.read([begin] * count + row.tokens, [IGNORED] * count + row.labels) for row in stage.rows]
        assert bool(stage.judge(rows)) == (count == 2)


def test_a_beginning_that_is_learned_in_an_answer_is_named(stage: Stage) -> None:
    begin, rows = stage.tokenizer.bos_token_id, []
    for row in stage.rows:
        start = row.turns[-1][1]
        rows.append(
            stage.read(
                [*row.tokens[:start], begin, *row.tokens[start:]], [*row.labels[:start], begin, *row.labels[start:]]
            )
        )
    separate = "6 answers begin with BOS: they were tokenized separately from their prompts"
    assert stage.judge(rows) == ["BOS is learned: 6 of 6 have a label", separate]
    assert stage.judge(rows, "all") != stage.judge(rows)


def test_answers_of_other_conversations_are_named(stage: Stage) -> None:
    rows = []
    for row, other in zip(stage.rows, [*stage.rows[1:], stage.rows[0]]):
        start, following = row.turns[-1][1], other.turns[-1][1]
        rows.append(
            stage.read(row.tokens[:start] + other.tokens[following:], row.labels[:start] + other.labels[following:])
        )
    assert stage.judge(rows) == ["6 answers follow another conversation's prompt"]


@pytest.mark.parametrize(
    ("former", "change"),
    [
        ("{% for m in messages %}", "{% for m in messages[:2] %}"),
        ("{% generation %}{{ m.content }}", "{% generation %}{{ m.content.split(' ')[1:] | join(' ') }}"),
    ],
)
def test_turns_that_a_template_drops_or_changes_are_named(tmp_path: Path, former: str, change: str) -> None:
    tokenizer = make_byte_tokenizer(*TEMPLATES["chatml"])
    assert former in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(former, change)
    stage = Stage(tmp_path, tokenizer, PARTS, tuple(NOUNS.split()))
    assert any("turns are not in the rows as the data has them" in problem for problem in stage.judge(stage.rows))


def test_turns_that_were_cut_off_before_rows_were_packed_are_not_named(stage: Stage) -> None:
    first, second, *others = stage.rows
    stop = first.turns[-2][1]  # where the last question began
    packed = stage.read(first.tokens[:stop] + second.tokens, first.labels[:stop] + second.labels)
    longest = stage.read([t for row in others for t in row.tokens], [t for row in others for t in row.labels])
    assert not any("are not in the rows" in problem for problem in stage.judge([packed, longest]))


def test_markup_and_ends_of_given_turns_that_are_learned_are_noted(tmp_path: Path) -> None:
    tokenizer = make_byte_tokenizer(*TEMPLATES["chatml"])
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ m.content }}", "{{ m.content | tojson }}")
    stage = Stage(tmp_path, tokenizer, PARTS, tuple(NOUNS.split()))
    _, notes = judge_rows(relabel(stage, keep_roles("other_end")), tokenizer, "assistant")
    assert any("learned: '\"' in 24 of 24 places" in note for note in notes), notes
    assert any("14 of 14 special tokens after other turns are learned" in note for note in notes), notes


@pytest.mark.parametrize(("prompt", "is_named"), [(None, True), ("<|end|><|assistant|>", True), ("<|end|>", False)])
def test_a_learned_header_is_named_if_prompts_contain_it(stage: Stage, prompt: str | None, is_named: bool) -> None:
    """LLaMA-Factory's `ernie_vl` generates the header too, by its own prompts and by the template that it saves."""
    problems = judge_rows(relabel(stage, header_learned), stage.tokenizer, "assistant", prompt=prompt)[0]
    named = "the chat template's header of 12 of 12 answers is learned: prompts contain it"
    assert (named in problems) == is_named


def test_the_end_of_a_trainers_prompts_is_recorded(tmp_path: Path) -> None:
    class Trainer:
        def __init__(self, tokenizer: Any) -> None:
            self.processing_class = tokenizer

        def train(self) -> str:
            return "trained"

    template = "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
    tokenizer = make_byte_tokenizer(*TEMPLATES["chatml"])
    watch_training(SimpleNamespace(Trainer=Trainer), partial(note_prompt, str(tmp_path)))
    generating = "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
    for text, expected in (
        (template, " [/INST]"),
        (template + generating, " [/INST]ASSISTANT: "),
        ("{{ raise_exception('no') }}", None),
    ):
        tokenizer.chat_template = text
        assert Trainer(tokenizer).train() == "trained"
        assert json.loads((tmp_path / "prompt.json").read_text()) == expected


def insert(row: Row, place: int, tokens: list[int], learned: bool) -> tuple[list[int], list[int]]:
    """Return a row's tokens and labels with others at a place."""
    labels = tokens if learned else [IGNORED] * len(tokens)
    return [*row.tokens[:place], *tokens, *row.tokens[place:]], [*row.labels[:place], *labels, *row.labels[place:]]


def drop_system(row: Row) -> tuple[list[int], list[int]]:
    stop = next((stop + 1 for _, _, stop, role in row.turns if role == "system"), 0)
    return row.tokens[stop:], row.labels[stop:]


# Rows with other tokens -> what is reported, and what is reported if the tokens are not learned.
OTHER_ROWS: dict[str, tuple[Callable[[Row, Any, bool], tuple[list[int], list[int]]], str, str]] = {
    "padded by the end token": (
        lambda row, tokenizer, learned: insert(row, len(row.tokens), [tokenizer.eos_token_id] * 5, learned),
        "30 end tokens that follow the end of an answer are learned",
        "",
    ),
    "two ends": (
        lambda row, tokenizer, learned: insert(row, row.turns[-1][2] + 1, [tokenizer.eos_token_id], learned),
        "6 end tokens that follow the end of an answer are learned",
        "",
    ),
    "the start of another answer": (
        lambda row, tokenizer, learned: insert(row, len(row.tokens), [row.tokens[row.turns[-1][1] - 1]], learned),
        "6 rows end with the chat template's start of another answer",
        "",
    ),
    "the prompt twice": (
        lambda row, tokenizer, learned: insert(row, 0, row.tokens[: row.roles.index("assistant")], False),
        "6 user turns are in their row twice",
        "6 user turns are in their row twice",
    ),
    "BOS before the answer": (
        lambda row, tokenizer, learned: insert(row, row.turns[-1][1], [tokenizer.bos_token_id], learned),
        "6 answers begin with BOS",
        "6 answers begin with BOS",
    ),
    "no system turns": (
        lambda row, tokenizer, learned: drop_system(row),
        "2 system turns of the data are not in the rows",
        "2 system turns of the data are not in the rows",
    ),
}


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("name", OTHER_ROWS)
def test_tokens_that_do_not_belong_to_a_row_are_named(stage: Stage, name: str, learned: bool) -> None:
    change, *messages = OTHER_ROWS[name]
    rows = [stage.read(*change(row, stage.tokenizer, learned)) for row in stage.rows]
    problems, _ = judge_rows(rows, stage.tokenizer, "assistant", True)
    message = messages[not learned]
    assert any(message in problem for problem in problems) if message else not problems, problems


def test_system_turns_that_a_framework_may_drop_are_noted(stage: Stage) -> None:
    problems, notes = judge_rows([stage.read(*drop_system(row)) for row in stage.rows], stage.tokenizer, "assistant")
    assert (problems, notes) == ([], ["2 system turns of the data are not in the rows"])


def test_rows_that_begin_inside_a_turn_are_noted(stage: Stage) -> None:
    start = [row.turns[-1][1] + 2 for row in stage.rows]
    rows = [stage.read(row.tokens[n:], row.labels[n:]) for row, n in zip(stage.rows, start, strict=True)]
    assert [row.roles[0] for row in rows] == ["assistant"] * len(rows)
    problems, notes = judge_rows(rows, stage.tokenizer, "assistant")
    assert (problems, notes) == ([], ["6 of 6 rows begin inside a turn"])


def test_whole_turns_at_the_ends_of_a_row_are_not_parts_of_others(tmp_path: Path, stage: Stage) -> None:
    """Without a chat template, words with which a row begins or ends may be the end or start of another turn."""
    first, last = (strip_blanks(stage.conversations[0][place][1]) for place in (0, -1))
    others = (("user", f"w99{first[:12]}"), ("assistant", f"{last[-12:]}w99"))
    (tmp_path / turns.FILE).write_text(json.dumps([*stage.conversations, others]))
    stage.finder = TurnFinder(tmp_path)
    [(_, start, *_), *_, (*_, stop, _)] = stage.rows[0].turns
    row = stage.read(stage.rows[0].tokens[start:stop], stage.rows[0].labels[start:stop])
    assert not row.begins_inside and not row.is_cut
    assert {conversation for conversation, *_ in row.turns} == {0}


@pytest.mark.parametrize(
    ("keeps", "message"),
    [
        (lambda row, place: place < row.turns[-1][1], "6 turns entirely"),
        (lambda row, place: all(not stop - 2 <= place < stop for *_, stop, _ in row.turns), "12 turns at the end"),
        (lambda row, place: all(not place - 2 < start <= place for _, start, *_ in row.turns), "12 turns at the start"),
    ],
)
def test_where_answers_are_not_learned_is_named(stage: Stage, keeps: Callable[[Row, int], bool], message: str) -> None:
    assert any(message in problem for problem in stage.judge(relabel(stage, keep_if(keeps))))


def test_the_first_token_of_a_packed_document_is_named(stage: Stage) -> None:
    first, second = stage.rows[:2]
    packed = stage.read(first.tokens + second.tokens, first.tokens + second.tokens)
    assert len(packed.starts) == 1
    assert packed.starts == {len(first.tokens)}
    assert any("first token of 1 of 1 packed documents" in problem for problem in stage.judge([packed], "all"))
    masked = stage.read(packed.tokens, [*first.tokens, IGNORED, *second.tokens[1:]])
    assert stage.judge([masked], "all") == []


def test_what_a_script_labels_is_not_held_to_roles(stage: Stage) -> None:
    everything = relabel(stage, lambda row, place: row.tokens[place])
    assert stage.judge(everything, "labelled") == []


def cuts_turns(row: Row, place: int) -> int:
    """Return labels whose mask begins two tokens before the end of each question."""
    return row.tokens[place] if any(place in (stop - 2, stop - 1) for *_, stop, _ in row.turns) else row.labels[place]


def test_a_mask_that_begins_inside_a_question_is_named_whoever_labels(stage: Stage) -> None:
    """A prompt's length that is counted from the row's start covers only a part of a prompt after padding."""
    cut = relabel(stage, cuts_turns)
    assert stage.judge(cut, "labelled") == [
        "2 system turns are learned in part: the mask begins or ends inside them",
        "12 user turns are learned in part: the mask begins or ends inside them",
    ]
    assert stage.judge(cut, "chosen") == []  # axolotl's `train_detail` chooses parts of a turn
    whole = relabel(stage, keep_roles("user", "system"))
    first = relabel(stage, lambda row, place: row.tokens[place] if place and row.roles[place] != "end" else IGNORED)
    assert stage.judge(whole, "labelled") == [] and len(stage.judge(first, "labelled")) == 1
    _, notes = judge_rows(relabel(stage, keep_if(is_last_answer)), stage.tokenizer, "labelled")
    assert "only the last assistant turn of a conversation is learned" in notes


def test_thoughts_are_their_own_role(tmp_path: Path, tokenizer: Any) -> None:
    stage = Stage(tmp_path, tokenizer, PARTS | {"thinking"})
    counts = {count.role: count for count in count_roles(stage.rows)}
    assert counts["thinking"].learned == counts["thinking"].tokens > 0
    assert stage.judge(stage.rows) == []


TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)


def keep_roles(*roles: str) -> Callable[[Row, int], int]:
    return lambda row, place: row.tokens[place] if row.roles[place] in roles else row.labels[place]


def test_tool_calls_and_their_results_are_roles_of_their_own(tmp_path: Path) -> None:
    tokenizer = make_byte_tokenizer(TOOLS, "<|im_end|>")
    assert conversations.list_parts(tokenizer, "messages") == {"system", "turns", "thinking"}
    parts = conversations.list_parts(tokenizer, "messages", True)
    assert parts == {"system", "turns", "thinking", "reasoning", "tools"}
    stage = Stage(tmp_path, tokenizer, parts, tuple(NOUNS.split()))
    assert stage.judge(stage.rows) == []
    counts = {count.role: count for count in count_roles(stage.rows)}
    assert counts["call"].learned == counts["call"].tokens > 0 == counts["tool"].learned < counts["tool"].tokens
    assert any("tool result turns are learned" in text for text in stage.judge(relabel(stage, keep_roles("tool"))))
    for role, name in (("call", "tool call"), ("thinking", "thinking")):
        rows = relabel(stage, keep_if(lambda row, place, role=role: row.roles[place] != role))  # type: ignore[misc]
        assert any(f"no token of the assistant's {name} turns" in text for text in stage.judge(rows))


def test_a_tool_call_is_not_part_of_the_last_answer(tmp_path: Path) -> None:
    tokenizer = make_byte_tokenizer(TOOLS, "<|im_end|>")
    parts = conversations.list_parts(tokenizer, "messages", True)
    stage = Stage(tmp_path, tokenizer, parts, tuple(NOUNS.split()))
    starts = {id(row): row.turns[-2][1] for row in stage.rows}  # its thought
    rows = relabel(stage, keep_if(lambda row, place: place >= starts[id(row)]))
    assert stage.judge(rows, "last") == []
    without = relabel(stage, keep_if(lambda row, place: place >= row.turns[-1][1]))
    assert stage.judge(without, "last") == ["no token of the assistant's thinking turns is learned"]


def test_headers_that_an_assistant_writes_may_be_learned(tmp_path: Path) -> None:
    """As TRL 1.9.0's gptoss_training.jinja has them: each part of an answer is a message with a header."""
    header = "{% generation %}<|start|>assistant<|message|>"
    template = TOOLS.replace("<|im_start|>{{ m.role }}\n", "").replace("{% generation %}", header)
    template = template.replace("</think>", "<|end|><|start|>assistant<|message|>").replace("<think>", "")
    tokenizer = make_byte_tokenizer(template, "<|im_end|>")
    for parts, expected in ((PARTS | {"thinking", "reasoning"}, 0), (PARTS, 1)):
        stage = Stage(tmp_path, tokenizer, parts, tuple(NOUNS.split()))
        assert len(stage.judge(stage.rows)) == expected


def test_thoughts_that_a_template_drops_are_noted(tmp_path: Path) -> None:
    tokenizer = make_byte_tokenizer(
        TOOLS.replace("m.reasoning_content %}", "m.reasoning_content and loop.last %}"), "<|im_end|>"
    )
    stage = Stage(tmp_path, tokenizer, PARTS | {"thinking", "reasoning"}, tuple(NOUNS.split()))
    problems, notes = judge_rows(stage.rows, tokenizer, "assistant")
    assert problems == []
    assert any(note.startswith("6 of 12 answers are learned without their thoughts") for note in notes)


def test_an_answer_that_is_cut_is_an_answer(stage: Stage) -> None:
    rows = [stage.read(row.tokens[: row.turns[-1][2] - 2], row.labels[: row.turns[-1][2] - 2]) for row in stage.rows]
    assert [row.roles[-1] for row in rows] == ["assistant"] * len(rows)
    problems, notes = judge_rows(rows, stage.tokenizer, "assistant")
    assert problems == []
    assert any("6 of 6 rows end inside a turn" in note for note in notes)


def test_the_last_answer_alone_may_be_what_a_launch_asks_for(stage: Stage) -> None:
    rows = relabel(stage, FAULTS["the last turn alone"][0])
    assert stage.judge(rows, "last") == []
    assert any("before the last" in problem for problem in stage.judge(stage.rows, "last"))


def test_an_end_that_is_predicted_where_the_next_turn_begins_is_no_other_token(stage: Stage) -> None:
    end, rows = stage.tokenizer.eos_token_id, []
    for row in stage.rows:  # as LLaMA-Factory makes them with `efficient_eos`, and with `mask_history` the first label
        first = row.roles.index("end")
        tokens = [*row.tokens[:first], *row.tokens[first + 1 :]]
        rows.append(stage.read(tokens, [end, *row.labels[1:first], end, *row.labels[first + 2 :]]))
    assert stage.judge(rows) == []


def begins_answer(row: Row, place: int) -> bool:
    return row.roles[place] == "assistant" and row.roles[place - 1] != "assistant"


def header_learned(row: Row, place: int) -> int:
    following = row.roles[place : place + 3]
    is_header = row.roles[place] == "template" and "assistant" in following
    return row.tokens[place] if is_header else row.labels[place]


# Masks of threads of 2025 and 2026, as their authors describe them, and what is reported.
THREADS: dict[str, tuple[Callable[[Row, int], int], str]] = {
    # Without {% generation %} in the template the mask is all ones.
    "NVIDIA-NeMo/Megatron-Bridge#3359": (lambda row, place: row.tokens[place], "user turns are learned"),
    "NVIDIA-NeMo/Megatron-Bridge#3927": (lambda row, place: row.tokens[place], "system turns are learned"),
    # Packing drops the mask of assistant turns.
    "huggingface/trl#3728": (lambda row, place: row.tokens[place], "user turns are learned"),
    # The padding token is the end token, and its labels are masked by value.
    "NVIDIA-NeMo/Megatron-Bridge#4660": (keep_if(lambda row, place: row.roles[place] != "end"), "learn to stop"),
    # The first token of each answer is never learned.
    "verl-project/verl#3287": (keep_if(lambda row, place: not begins_answer(row, place)), "are not learned"),
    "OpenRLHF/OpenRLHF#973": (keep_if(lambda row, place: not begins_answer(row, place)), "are not learned"),
    # The prompt was tokenized without its generation prompt: the header of the answer counts as the answer.
    "huggingface/trl#4147": (header_learned, "header of 12 of 12 answers is learned"),
    "huggingface/trl#4201": (header_learned, "header of 12 of 12 answers is learned"),
    # The mask is moved to the left: the end of a response is masked, and the end of its prompt is not.
    "verl-project/verl#3562": (FAULTS["the mask is one early"][0], "the mask is one token early"),
    "verl-project/verl#5362": (FAULTS["the mask is one early"][0], "the mask is one token early"),
}


@pytest.mark.parametrize("thread", THREADS)
def test_masks_of_threads_are_named(stage: Stage, thread: str) -> None:
    change, message = THREADS[thread]
    problems = stage.judge(relabel(stage, change))
    assert any(message in problem for problem in problems), problems


MASKS_OF_ZEROS = (
    "marin-community/marin#7237",
    "Liquid4All/liquid-finetune#37",
    # TRL documents that assistant_only_loss takes a template with {% generation %}: without, nothing was learned.
    "huggingface/trl#3586",
    "huggingface/trl#3784",
)


@pytest.mark.parametrize("thread", MASKS_OF_ZEROS)
def test_a_template_without_marks_gives_a_mask_of_zeros(tmp_path: Path, thread: str) -> None:
    tokenizer = make_byte_tokenizer(*TEMPLATES["chatml"])
    marks = re.compile(r"{% (end)?generation %}")
    tokenizer.chat_template = marks.sub("", tokenizer.chat_template)
    stage = Stage(tmp_path, tokenizer, PARTS, tuple(NOUNS.split()))  # by apply_chat_template's own mask
    assert stage.judge(stage.rows) == ["nothing is learned: every label is -100"]


def apply_template(stage: Stage, change: Callable[[list[dict[str, str]]], list[dict[str, str]]]) -> list[Row]:
    """Return the rows of conversations that are changed before the chat template is applied."""
    rows = []
    for conversation in stage.conversations:
        messages = change(conversations.make_row(conversation, "messages")["messages"])
        encoded = stage.tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        tokens, learned = encoded["input_ids"], encoded["assistant_masks"]
        rows.append(stage.read(tokens, [token if is_on else IGNORED for token, is_on in zip(tokens, learned)]))
    return rows


def change_answers(change: Callable[[str], str]) -> Callable[[Stage], list[Row]]:
    """Return what changes the text of answers."""
    return lambda stage: apply_template(
        stage, lambda messages: [m | {"content": change(m["content"])} if is_answer(m) else m for m in messages]
    )


def is_answer(message: dict[str, str]) -> bool:
    return message["role"] == "assistant"


def keep_last_answers(stage: Stage) -> list[Row]:
    """Return rows without the text before their last answer's header."""
    starts = [row.turns[-1][1] - len(HEADER) for row in stage.rows]
    return [stage.read(row.tokens[n:], row.labels[n:]) for row, n in zip(stage.rows, starts, strict=True)]


HEADER = (None, *"assistant\n")  # a special token and bytes
DEFAULT_PROMPT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
# What programs may do to rows before their labels are made, and what is reported.
CHANGED_ROWS: dict[str, tuple[Callable[[Stage], list[Row]], str]] = {
    "the template is applied twice": (
        lambda stage: apply_template(
            stage,
            lambda messages: [
                m | {"content": f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n"} for m in messages
            ],
        ),
        "12 answers have their header twice",
    ),
    "a default system prompt is learned": (
        lambda stage: [
            stage.read(prompt + row.tokens, prompt + row.labels)
            for prompt in [stage.tokenizer(DEFAULT_PROMPT)["input_ids"]]
            for row in stage.rows
        ],
        "before or after other turns is learned in 6 of 6 rows",
    ),
    "turns are sorted by role": (
        lambda stage: apply_template(stage, lambda messages: sorted(messages, key=is_answer)),
        "6 turns precede an earlier turn of their conversation",
    ),
    "answers without their prompts": (keep_last_answers, "turns are not in the rows as the data has them"),
    "one conversation in every row": (lambda stage: stage.rows[:1] * 6, "all 6 rows are the same"),
    "answers are cut and ended": (change_answers(lambda text: text[:20]), "turns are not in the rows"),
    "answers are written twice": (
        change_answers(lambda text: f"{text} {text}"),
        "12 assistant turns are in their row twice, with one question",
    ),
}


@pytest.mark.parametrize("fault", CHANGED_ROWS)
def test_rows_that_a_program_changes_are_named(tmp_path: Path, fault: str) -> None:
    stage = Stage(tmp_path, make_byte_tokenizer(*TEMPLATES["chatml"]), PARTS, tuple(NOUNS.split()))
    change, message = CHANGED_ROWS[fault]
    problems = stage.judge(change(stage))
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize("form", ["messages", "text", "prompt_completion", "instruction", "conversations", "every"])
def test_rows_hold_the_texts_of_their_turns(form: Any) -> None:
    parts = PARTS if form in ("messages", "conversations") else frozenset()
    for conversation in conversations.make_conversations(3, 1, list(MADE.texts), parts):
        row = json.dumps(conversations.make_row(conversation, form))
        assert all(text in row for role, text in conversation if role in ("user", "assistant"))


ANSWER = "{% generation %}{{ m.content }}END{% endgeneration %}"
# The chat templates of common model families in short, with the marks of what is learned; END is the turn's end.
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}ANSWER{{ '\n' }}"
        "{% else %}{{ m.content }}END{{ '\n' }}{% endif %}{% endfor %}",
        "<|im_end|>",
    ),
    "llama 3": (
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
        "{% if m.role == 'assistant' %}ANSWER{% else %}{{ m.content }}END{% endif %}{% endfor %}",
        "<|eot_id|>",
    ),
    "gemma": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if m.role == 'assistant' %}<start_of_turn>model\nANSWER{{ '\n' }}{% else %}<start_of_turn>user\n"
        "{{ m.content }}END{{ '\n' }}{% endif %}{% endfor %}",
        "<end_of_turn>",
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' }}ANSWER{% else %}"
        "[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}",
        "</s>",
    ),
    "phi": (
        "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}ANSWER{{ '\n' }}{% else %}"
        "{{ m.content }}END{{ '\n' }}{% endif %}{% endfor %}",
        "<|end|>",
    ),
    "vicuna": (
        "{% for m in messages %}{% if m.role == 'assistant' %}ASSISTANT: ANSWER{% else %}USER: {{ m.content }} "
        "{% endif %}{% endfor %}",
        "</s>",
    ),
    "deepseek": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}<|Assistant|>ANSWER"
        "{% elif m.role == 'user' %}<|User|>{{ m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
        "<|sentence_end|>",
    ),
    "harmony": (
        "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final<|message|>ANSWER"
        "{% else %}<|message|>{{ m.content }}END{% endif %}{% endfor %}",
        "<|return|>",
    ),
}
SPECIAL = re.compile(r"<\|?[a-zA-Z_]+\|?>|\[/?INST\]|</s>")


def make_byte_tokenizer(template: str, end: str) -> Any:
    """Return a tokenizer of bytes, with the template's markup as special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(alphabet)}, merges=[]))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    markup = sorted({*SPECIAL.findall(template), end, "<|begin|>", "<|pad|>"})
    whole.add_special_tokens([AddedToken(text, normalized=False) for text in markup])
    fast = PreTrainedTokenizerFast(tokenizer_object=whole, bos_token="<|begin|>", eos_token=end, pad_token="<|pad|>")
    fast.chat_template = template.replace("ANSWER", ANSWER).replace("END", end)
    return fast


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_model_families_are_read_rightly(tmp_path: Path, name: str) -> None:
    tokenizer = make_byte_tokenizer(*TEMPLATES[name])
    parts = conversations.list_parts(tokenizer, "messages")
    assert ("system" in parts) == (name != "gemma")
    assert "turns" in parts
    stage = Stage(tmp_path, tokenizer, parts, tuple(NOUNS.split()))
    assert stage.judge(stage.rows) == []
    for fault in ("nothing is learned", "everything is learned", "the end is not learned", "the last turn alone"):
        change, message = FAULTS[fault]
        problems = stage.judge(relabel(stage, change))
        assert any(message in problem for problem in problems), (fault, problems)


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        ("", "--answers_only", ""),
        pytest.param("labels_shifted", "--answers_only", "off by one", marks=pytest.mark.nightly),
        pytest.param("end_unlabelled", "--answers_only", "does not learn to stop", marks=pytest.mark.nightly),
    ],
)
def test_a_launch_is_run_and_its_labels_are_read(
    attncheck: Run, tmp_path: Path, fault: str, options: str, message: str
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    launch = f"python train.py {OPTIONS} {options}".split()
    environ = {**os.environ, "PLANTED_FAULT": fault}
    done = attncheck("labels", "--format", "json", "--", *launch, env=environ, timeout=300)
    report = json.loads(done.stdout)
    assert done.returncode == bool(message), done.stderr
    assert [finding["code"] for finding in report["findings"]] == ["ATN439"] * bool(message)
    assert all(message in finding["message"] for finding in report["findings"])
    (section,) = report["labels"]["launches"]
    counts = {count["role"]: count for count in section["counts"]}
    assert counts["assistant"]["learned"] > 0
    # Labels that are shifted name the first token of an answer at the place before it.
    assert (counts["user"]["learned"] > 0) == (fault == "labels_shifted")


def test_a_script_with_columns_of_its_own_is_read(attncheck: Run, tmp_path: Path) -> None:
    names = ('("prompt", "completion")', '("problem", "solution")')
    (tmp_path / "train.py").write_text(SCRIPT.read_text().replace(*names))
    launch = f"python train.py {OPTIONS} --answers_only".split()
    done = attncheck("labels", "--format", "json", "--", *launch, cwd=tmp_path, timeout=300)
    [section] = json.loads(done.stdout)["labels"]["launches"]
    learned = {count["role"]: count["learned"] for count in section["counts"]}
    assert done.returncode == 0 and learned["assistant"] > 0 == learned["user"], (section["reason"], done.stderr)


def test_a_mask_that_a_script_finds_by_another_template_is_not_judged(attncheck: Run, tmp_path: Path) -> None:
    """The synthetic template has no such markup, so that nothing would be learned: this is no fault of the launch."""
    (tmp_path / "train.py").write_text(f"{SCRIPT.read_text()}\nRESPONSE = '<|im_start|>assistant'\n")
    launch = f"python train.py {OPTIONS} --answers_only".split()
    done = attncheck("labels", "--format", "json", "--", *launch, cwd=tmp_path, timeout=300)
    [section] = json.loads(done.stdout)["labels"]["launches"]
    assert done.returncode == 3 and "<|im_start|>" in section["reason"] and "--template" in section["reason"]


@pytest.mark.parametrize(
    ("legal", "message"),
    [
        *(
            pytest.param(name, "", marks=pytest.mark.nightly)
            for name in (
                "",
                "entropy_everywhere_fused",
                "smoothing",
                "smoothing_fused",
                "entropy_everywhere",
                "smoothing_everywhere",
                "strong_z_loss",
                "strong_entropy_bonus",
                "dft",
                "z_loss_everywhere",
                "kl_to_reference",
                "kl_to_own",
            )
        ),
        pytest.param("smoothing_unshifted", "off by one", marks=pytest.mark.nightly),
        ("smoothing_unshifted_fused", "off by one"),
    ],
)
def test_labels_are_measured_whatever_is_added_to_the_loss(
    attncheck: Run, tmp_path: Path, legal: str, message: str
) -> None:
    """The script computes its loss itself, so that the model gets no labels."""
    shutil.copy(SCRIPTS / "legal.py", tmp_path / "train.py")
    launch = f"python train.py {OPTIONS}".split()
    environ = {**os.environ, "LEGAL": legal}
    done = attncheck("labels", "--format", "json", "--", *launch, env=environ, cwd=tmp_path, timeout=300)
    report = json.loads(done.stdout)
    assert done.returncode == bool(message), report["labels"]
    messages = [finding["message"] for finding in report["findings"]]
    assert any(message in text for text in messages) if message else messages == [], messages
    (section,) = report["labels"]["launches"]
    counts = {count["role"]: (count["learned"], count["tokens"]) for count in section["counts"]}
    assert counts["assistant"][0] > 0
    if not message:
        assert counts["assistant"][0] == counts["assistant"][1] and counts["user"][0] == 0


def spread(logits: torch.Tensor, logits_of_other: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return terms of a loss for each position that do not make one token more probable than all others."""
    own, other = logits.log_softmax(-1), logits_of_other.log_softmax(-1)
    entropy = -(own.exp() * own).sum(-1)
    return {
        "nothing": torch.zeros_like(entropy),
        "entropy bonus": -0.3 * entropy,
        "entropy penalty": 0.3 * entropy,
        "z-loss": 1e-2 * logits.logsumexp(-1) ** 2,
        "smoothing": -0.1 * own.mean(-1),
        "divergence": 0.3 * functional.kl_div(other, own, log_target=True, reduction="none").sum(-1),
        "distillation": 0.3 * functional.kl_div(own, other, log_target=True, reduction="none").sum(-1),
        "divergence from itself": functional.kl_div(own.detach(), own, log_target=True, reduction="none").sum(-1),
        "unlikelihood": -0.3 * torch.log1p(-own.exp()[..., :1].sum(-1)),
        "norm of logits": 1e-3 * logits.square().mean(-1),
    }


@pytest.mark.parametrize("is_fused", [False, True], ids=["logits", "hidden states"])
@pytest.mark.parametrize("sharpness", [1.0, 8.0])
def test_a_term_on_every_position_is_not_learning(
    is_fused: bool, sharpness: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's prompts are learned by a term over them; answers that are learned, and prompts, are found with it."""
    monkeypatch.setenv("ATTNCHECK_LABELS", "1")
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    model, other = (LlamaForCausalLM(shape).train() for _ in range(2))
    other.lm_head.weight.data *= sharpness
    recorder = Recorder(str(tmp_path))
    recorder.watch(model)
    ids = torch.randint(0, 400, (2, 24))
    for learned in (slice(12, 23), slice(0, 23)):
        answers = torch.zeros(2, 24, dtype=torch.bool)
        answers[:, learned] = True
        for name in spread(torch.zeros(1, 2), torch.zeros(1, 2)):
            for weight in (1.0, 0.0):
                recorder._begin_step()
                output = model(input_ids=ids, output_hidden_states=True)
                logits = output.hidden_states[-1] @ model.lm_head.weight.T if is_fused else output.logits
                losses = functional.cross_entropy(logits.transpose(1, 2), ids.roll(-1, 1), reduction="none")
                term = spread(logits, other(input_ids=ids).logits.detach())[name]
                (weight * (losses * answers).sum() + term.sum()).backward()
                labels = recorder.calls[-1]["learned"]
                expected = torch.where(answers.roll(1, 1), ids, UNCLEAR) if weight else torch.full_like(ids, UNCLEAR)
                certain = labels.masked_fill(labels == IGNORED, UNCLEAR)[:, 1:]
                assert certain.equal(expected[:, 1:]), (name, weight, learned)
                assert not recorder.faults, recorder.faults


@pytest.mark.nightly
def test_a_loss_that_is_no_cross_entropy_is_no_error(attncheck: Run, tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "legal.py", tmp_path / "train.py")
    launch = f"python train.py {OPTIONS}".split()
    environ = {**os.environ, "LEGAL": "entropy_alone"}
    done = attncheck("labels", "--format", "json", "--", *launch, env=environ, cwd=tmp_path, timeout=300)
    assert done.returncode == 3 and "not known" in done.stderr, (done.stdout, done.stderr)


@pytest.mark.parametrize(("tower", "is_noted"), [("audio_config", True), ("vision_config", False)])
def test_sound_is_named_as_not_asked(tower: str, is_noted: bool, tmp_path: Path) -> None:
    """Rows have images at most: labels of a model that takes sound are of its text, and this is said."""
    text = {"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    sizes = {"hidden_size": 32, "d_model": 32, "num_heads": 2, "num_attention_heads": 2, "encoder_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "text_config": text, tower: sizes}))
    source = Source("run.sh", f"trl sft --model_name_or_path {tmp_path} --dataset_name a/b --output_dir out", "shell")
    (read,) = read_launches(laptop(), source, inputs.make_model_reader(False), lambda path: None)
    assert len([remark for remark in _note_sound(read) if "sound were not asked" in remark]) == is_noted


def test_what_cannot_be_labelled_is_one_line(attncheck: Run, tmp_path: Path) -> None:
    for arguments, code, message in (
        ((), 2, "name a launch script"),
        (("nosuch.sh",), 2, "nosuch.sh"),
        *(
            (("--template", folder, "--", "trl", "sft", "--model_name_or_path", "a/b"), 3, "no such folder")
            for folder in ("nowhere", str(tmp_path))
        ),
        (("--", "true"), 3, "starts no training"),
        ((str(tmp_path),), 3, "the folder: starts no training"),
    ):
        done = attncheck("labels", *arguments)
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (code, 1), done.stderr
        assert message in done.stderr


def test_what_a_launch_prints_is_shown_without_its_secrets(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nraise SystemExit('refused ' + os.environ['DB_PASSWORD'])\n")
    (tmp_path / "run.sh").write_text(f"export DB_PASSWORD=q7Xk93pLw2vZ\npython train.py {OPTIONS}\n")
    done = attncheck("labels", "run.sh", "--format", "json", cwd=tmp_path, timeout=300)
    assert done.returncode == 3
    [launch] = json.loads(done.stdout)["labels"]["launches"]
    assert "refused" in launch["reason"] and "q7Xk93pLw2vZ" not in done.stdout + done.stderr


@pytest.mark.nightly
def test_a_program_that_is_not_installed_is_the_reason(attncheck: Run, tmp_path: Path) -> None:
    """No Python process of the launch is watched, because none starts."""
    launch = ("trl", "sft", "--model_name_or_path", "a/b", "--dataset_name", "c/d", "--output_dir", "out")
    environ = {**os.environ, "PATH": os.defpath}
    done = attncheck("labels", "--format", "json", "--", *launch, env=environ, cwd=tmp_path, timeout=300)
    [labelled] = json.loads(done.stdout)["labels"]["launches"]
    assert done.returncode == 3 and "trl: command not found" in labelled["reason"]
