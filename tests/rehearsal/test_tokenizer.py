"""The tokenizer that is made for a small model."""

from __future__ import annotations

import pytest

from attncheck.rehearsal.worker.materials import HEADERS, VOCABULARY_SIZE, make_tokenizer, write_template, write_turns


def test_unknown_words_are_tokens_by_their_first_letters() -> None:
    """Some launches pad with "<unk>": it is no word of a prompt."""
    tokenizer = make_tokenizer(True)
    assert len(tokenizer) < VOCABULARY_SIZE
    tokens = tokenizer("w3 You are helpful; été 42 w5", add_special_tokens=False)["input_ids"]
    assert (tokens[0], tokens[-1], len(tokens)) == (3, 5, 7)
    assert tokenizer.unk_token_id not in tokens
    you, are, *_ = (tokenizer.convert_ids_to_tokens(token) for token in tokens[1:])
    assert (you, are) == ("~y", "~a")


@pytest.mark.parametrize("marker", HEADERS)
def test_turns_begin_with_the_marker_that_a_script_searches(marker: str) -> None:
    """The rest of the template stays: the words, which tokens an answer has, and its end."""
    tokenizer = make_tokenizer(True)
    messages = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3 w4"}]
    plain = tokenizer.apply_chat_template(messages, tokenize=False)
    tokenizer.chat_template = write_template(marker)
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    begin, end = HEADERS[marker]
    assert text.count(begin.partition("{")[0]) == 2 and f"w1 w2 {end}\n" in text
    assert text.endswith("w3 w4 </s>\n") and plain.endswith("<|assistant|> w3 w4 </s>\n")
    generated = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert text.startswith(generated)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert [token for token in tokens if token < 5] == [1, 2, 3, 4] and tokenizer.unk_token_id not in tokens
    written = write_turns([{"messages": messages, "text": "w1 w2 w3 w4"}], marker)[0]["text"]
    assert written == text
    assert write_turns([{"text": "w1"}], marker) == write_turns([{"text": "w1"}], "") == [{"text": "w1"}]
