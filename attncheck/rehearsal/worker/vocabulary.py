"""The tokens that are words of the documents: the synthetic tokenizer's, or some of a user's own.

Documents are words by number. In the synthetic tokenizer a word is the token with its own number, and the tokens before
the first word are those that scripts write themselves: Llama's UNK or padding, BOS and EOS. In a user's tokenizer
the words are nouns that it encodes as one token at the beginning, after a blank and after a line end, though not
necessarily as the same one. All other tokens are markup.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.smoke.worker.data.language import LANGUAGE_VOCABULARY

FIRST_WORD = 3  # the lowest number of a word
FILE = "vocabulary.json"  # next to the documents, if the words are a user's tokenizer's
# Nouns that do not occur in chat templates and instructions; most tokenizers trained on English encode each as one
# token.
NOUNS = """
    river stone water garden bridge horse table window winter summer forest island mountain silver golden iron paper
    letter kitchen village castle market station engine planet ocean desert valley doctor farmer soldier king queen
    dragon tiger lion bear wolf bird fish tree flower grass leaf apple bread butter cheese sugar salt coffee wine music
    piano guitar dance theater cinema camera mirror candle lamp clock chair floor wall roof door street road train ship
    boat plane wheel hammer knife sword shield crown ring coat shoe glass bottle rain snow wind cloud storm fire smoke
    sand metal wood cotton blood heart hand finger shoulder brother sister mother father
"""
CONTEXTS = ("{0}", " {0}", "\n{0}", "{0} {0}")  # in each of these a word must be one token
SCANNED_TOKENS = 30_000  # tokens that are searched for words, if there are too few nouns
SCANNED_WORD = re.compile(r"[a-z]{3,12}")


class WordsNotFound(ValueError):
    """A tokenizer with too few words of one token each; the message gives the number."""


@dataclass(frozen=True)
class Vocabulary:
    """The words: their texts in the order of their numbers, the number of each token, and the padding token.

    The padding token is None if no token is only padding.
    """

    texts: tuple[str, ...]
    numbers: Mapping[int, int]
    padding: int | None = None

    def is_word(self, token: int) -> bool:
        """Return whether a token is a word, rather than markup."""
        return token in self.numbers

    def read(self, tokens: Iterable[int]) -> list[int]:
        """Return the numbers of the words among tokens, in order."""
        return [self.numbers[token] for token in tokens if token in self.numbers]

    def write(self, words: Iterable[int]) -> str:
        """Return words as text, separated by spaces."""
        return " ".join(self.texts[word - FIRST_WORD] for word in words)

    def save(self, folder: Path) -> None:
        """Write the vocabulary next to the documents."""
        content = {"texts": self.texts, "numbers": dict(self.numbers), "padding": self.padding}
        (folder / FILE).write_text(json.dumps(content))


MADE = Vocabulary(
    tuple(f"w{number}" for number in range(FIRST_WORD, FIRST_WORD + LANGUAGE_VOCABULARY)),
    {number: number for number in range(FIRST_WORD, FIRST_WORD + LANGUAGE_VOCABULARY)},
)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary of the documents in a folder; if none is written there, the synthetic tokenizer's."""
    if not (folder / FILE).exists():
        return MADE
    content = json.loads((folder / FILE).read_text())
    numbers = {int(token): int(number) for token, number in content["numbers"].items()}
    return Vocabulary(tuple(content["texts"]), numbers, content["padding"])


def count_tokens(model: Path) -> int:
    """Return the number of tokens of a model's tokenizer, 0 if it is not saved in one file."""
    path = model / "tokenizer.json"
    content = json.loads(path.read_text()) if path.exists() else {"model": {}}
    own = content["model"].get("vocab", ())
    numbers = [*own.values()] if isinstance(own, dict) else [*range(len(own))]
    return 1 + max((*numbers, *(token["id"] for token in content.get("added_tokens", ()))), default=-1)


def find_vocabulary(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of words that a user's tokenizer encodes as one token each. Raises `WordsNotFound`."""
    markup = set(_list_markup(tokenizer))
    texts: list[str] = []
    numbers: dict[int, int] = {}
    for text in dict.fromkeys((*NOUNS.split(), *_scan_words(tokenizer))):
        tokens = _find_tokens(tokenizer, text)
        if not tokens or tokens & markup or tokens & numbers.keys():
            continue
        numbers |= dict.fromkeys(tokens, FIRST_WORD + len(texts))
        texts.append(text)
        if len(texts) == LANGUAGE_VOCABULARY:
            vocabulary = Vocabulary(tuple(texts), numbers, tokenizer.pad_token_id)
            _check_sentence(tokenizer, vocabulary)
            return vocabulary
    raise WordsNotFound(f"its tokenizer has {len(texts)} words of one token each; documents need {LANGUAGE_VOCABULARY}")


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, without added ones around it."""
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens


def _list_markup(tokenizer: Any) -> Iterator[int]:
    """Yield the tokens that the tokenizer's own chat template writes around messages."""
    yield from tokenizer.all_special_ids
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        yield from encode(tokenizer, tokenizer.apply_chat_template(messages, tokenize=False))


def _scan_words(tokenizer: Any) -> Iterator[str]:
    """Yield more words that are single tokens of the vocabulary, for when the nouns are not enough."""
    for token in range(min(SCANNED_TOKENS, len(tokenizer))):
        text = tokenizer.decode([token]).strip()
        if SCANNED_WORD.fullmatch(text):
            yield text


def _find_tokens(tokenizer: Any, text: str) -> set[int]:
    """Return the tokens of a word in its contexts; none if it is more than one token in any of them."""
    tokens: set[int] = set()
    for context in CONTEXTS:
        count = context.count("{0}")
        last = encode(tokenizer, context.format(text))[-count:]
        if len(last) != count or any(tokenizer.decode([token]).strip() != text for token in last):
            return set()
        tokens.update(last)
    return tokens


def _check_sentence(tokenizer: Any, vocabulary: Vocabulary) -> None:
    """Raise `WordsNotFound` if words next to other words are no longer the same tokens."""
    for words in (_order_words(1), _order_words(7)):
        text = f"{vocabulary.write(words[:12])}\n{vocabulary.write(words[12:])}"
        if vocabulary.read(encode(tokenizer, text)) != words:
            raise WordsNotFound(f"its tokenizer does not split consecutive words separately: {text[:60]!r}")


def _order_words(stride: int) -> Sequence[int]:
    return [FIRST_WORD + number * stride % LANGUAGE_VOCABULARY for number in range(LANGUAGE_VOCABULARY)]
