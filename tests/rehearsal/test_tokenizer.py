"""The tokenizer that is made for a small model."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from attncheck.rehearsal.worker.materials import (
    HEADERS,
    VOCABULARY_SIZE,
    make_pairs,
    make_tokenizer,
    write_template,
    write_turns,
)
from attncheck.rehearsal.worker.segments import DocumentIndex
from attncheck.rehearsal.worker.vocabulary import MADE


def test_unknown_words_are_tokens_by_their_first_letters() -> None:
    """Some launches pad with "<unk>": it is no word of a prompt."""
    tokenizer = make_tokenizer(True)
    assert len(tokenizer) < VOCABULARY_SIZE
    tokens = tokenizer("w3 You are helpful; été 42 w5", add_special_tokens=False)["input_ids"]
    assert (tokens[0], tokens[-1], len(tokens)) == (3, 5, 7)
    assert tokenizer.unk_token_id not in tokens
    you, are, *_ = (tokenizer.convert_ids_to_tokens(token) for token in tokens[1:])
    assert (you, are) == ("~y", "~a")


def test_tokens_that_scripts_write_by_number_are_no_words() -> None:
    """Llama's: UNK or padding, BOS and EOS. Pixtral-Finetune's data.py writes 1 and 2 around each turn."""
    tokenizer = make_tokenizer(False)
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    documents = [document["turns"] for document in make_pairs(200, 7)]
    words = [tuple(word for _, own in turns for word in own) for turns in documents]
    assert all(own == tuple(tokenizer(MADE.write(own), add_special_tokens=False)["input_ids"]) for own in words)
    assert {word for own in words for word in own} == set(MADE.numbers) and min(MADE.numbers) == 3
    answers = [turns[1][1] for turns in documents]
    assert all(chosen[0] != rejected[0] for chosen, rejected in zip(answers[::2], answers[1::2], strict=True))
    row = [token for own in words[:6] for token in (1, *own, 2)] + [0] * 5
    segments = DocumentIndex(documents).find_segments(row, (), None)
    assert [(own.document, own.offset, own.words) for own in segments] == [(n, 0, len(words[n])) for n in range(6)]


def test_a_text_models_tokenizer_returns_no_token_types(tmp_path: Path) -> None:
    """gpt2 adds an embedding for each token type (transformers 4.57.3, 5.17.0 models/gpt2/modeling_gpt2.py)."""
    make_tokenizer(True).save_pretrained(tmp_path)
    assert set(AutoTokenizer.from_pretrained(tmp_path)("w3 w4")) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("marker", HEADERS)
def test_turns_begin_with_the_marker_that_a_script_searches(marker: str) -> None:
    """The rest of the template stays: the words, which tokens an answer has, and its end."""
    tokenizer = make_tokenizer(True)
    messages = [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w3 w4"}]
    plain = tokenizer.apply_chat_template(messages, tokenize=False)
    tokenizer.chat_template = write_template(marker)
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    begin, end = HEADERS[marker]
    assert text.count(begin.partition("{")[0]) == 2 and f"w5 w6 {end}\n" in text
    assert text.endswith("w3 w4 </s>\n") and plain.endswith("<|assistant|> w3 w4 </s>\n")
    generated = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert text.startswith(generated)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert [token for token in tokens if 2 < token < 7] == [5, 6, 3, 4] and tokenizer.unk_token_id not in tokens
    written = write_turns([{"messages": messages, "text": "w5 w6 w3 w4"}], marker)[0]["text"]
    assert written == text
    assert write_turns([{"text": "w5"}], marker) == write_turns([{"text": "w5"}], "") == [{"text": "w5"}]
