"""The tokenizer that is made for a small model."""

from __future__ import annotations

from attncheck.rehearsal.worker.materials import VOCABULARY_SIZE, make_tokenizer


def test_unknown_words_are_tokens_by_their_first_letters() -> None:
    """Some launches pad with "<unk>": it is no word of a prompt."""
    tokenizer = make_tokenizer(True)
    assert len(tokenizer) < VOCABULARY_SIZE
    tokens = tokenizer("w3 You are helpful; été 42 w5", add_special_tokens=False)["input_ids"]
    assert (tokens[0], tokens[-1], len(tokens)) == (3, 5, 7)
    assert tokenizer.unk_token_id not in tokens
    you, are, *_ = (tokenizer.convert_ids_to_tokens(token) for token in tokens[1:])
    assert (you, are) == ("~y", "~a")
