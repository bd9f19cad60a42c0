"""Finds the documents in rows of tokens: each token's document, and the documents' boundaries.

Every word of a document is one token (`vocabulary`); all other tokens are markup, which each framework writes in its
own way. A document is recognised by its words. In the markup between two documents, the job's own boundary decides
(where `position_ids` restart, `cu_seqlens`); without one, the length of the markup before a row's first document.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attncheck.rehearsal.worker.vocabulary import MADE, Vocabulary

Document = Sequence[tuple[str, tuple[int, ...]]]  # turns: the speaker, and the words
MAX_WORDS = 4096  # the most words of one document
SEED_WORDS = 6  # words that are used to find a piece of a document
CHANCE = 2  # words: a beginning is preferred to a piece that is longer by fewer


@dataclass(frozen=True)
class Segment:
    """A piece of a document in a row: tokens [start, stop), words [offset, offset + words) of the document."""

    document: int  # -1: words of no document
    start: int
    stop: int
    offset: int
    words: int
    inferred: bool = False  # whether no data of the job confirm its start


class DocumentIndex:
    """Finds documents by their words."""

    is_own = False  # whether the documents are rows of the user's data

    def __init__(
        self, documents: Sequence[Document], vocabulary: Vocabulary = MADE, placeholders: Collection[int] = ()
    ) -> None:
        """Read the documents; `placeholders` are the tokens of images, which not every document has."""
        self.documents, self.vocabulary, self.placeholders = documents, vocabulary, placeholders
        self.words = [tuple(word for _, words in document for word in words) for document in documents]
        self._places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._ends: dict[tuple[int, ...], tuple[int, int]] = {}
        for number, words in enumerate(self.words):
            for offset in range(len(words) - SEED_WORDS + 1):
                self._places.setdefault(words[offset : offset + SEED_WORDS], []).append((number, offset))
            for length in range(1, SEED_WORDS):
                self._ends.setdefault(words[-length:], (number, len(words) - length))

    def name_document(self, document: int) -> str:
        """Return a document's name for messages."""
        return f"document {document}"

    def find_segments(self, row: Sequence[int], borders: Sequence[int], padding: int | None) -> list[Segment]:
        """Return the pieces of documents in a row, in order; `borders` are the job's starts of documents."""
        return find_segments(row, self, borders, padding)

    def find_piece(self, words: Sequence[int]) -> tuple[int, int, int]:
        """Return (document, offset, length) of the longest piece of a document at the beginning of the words.

        It is document -1, with the length 1, if no document has such words.
        """
        places = self._places.get(tuple(words[:SEED_WORDS]), [])
        lengths = [(self._match(words, number, offset), number, offset) for number, offset in places]
        if lengths:  # a word or two may match the middle of another document by chance
            length, number, offset = max(lengths, key=lambda own: (own[0] + CHANCE * (own[2] == 0), *own))
            return number, offset, length
        return self._find_short_piece(words)

    def _find_short_piece(self, words: Sequence[int]) -> tuple[int, int, int]:
        """Return the end of a document where another begins, or the beginning of a document where the words end."""
        for length in range(min(SEED_WORDS - 1, len(words)), 0, -1):
            following = tuple(words[length : length + SEED_WORDS])
            is_end = not following or len(following) < SEED_WORDS or following in self._places
            if is_end and tuple(words[:length]) in self._ends:
                return *self._ends[tuple(words[:length])], length
        if len(words) < SEED_WORDS:
            for number, own in enumerate(self.words):
                if own[: len(words)] == tuple(words):
                    return number, 0, len(words)
        return -1, 0, 1

    def _match(self, words: Sequence[int], number: int, offset: int) -> int:
        own = self.words[number]
        length = 0
        while offset + length < len(own) and length < len(words) and own[offset + length] == words[length]:
            length += 1
        return length

    def roles(self, document: int) -> list[str]:
        """Return the speaking role of each word of a document."""
        return [role for role, words in self.documents[document] for _ in words]


def read_documents(content: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Return the documents that `materials.make_documents` wrote."""
    return [[(str(role), tuple(words)) for role, words in document["turns"]] for document in content]


def find_segments(
    row: Sequence[int], index: DocumentIndex, borders: Sequence[int], padding: int | None
) -> list[Segment]:
    """Return the pieces of documents in a row, in order; `borders` are the job's starts of documents."""
    first, last = strip_padding(row, padding)
    places = [place for place in range(first, last) if index.vocabulary.is_word(row[place])]
    words = index.vocabulary.read(row[first:last])
    pieces: list[tuple[int, int, int, int]] = []  # document, offset, first word's and last word's position
    counts: list[int] = []  # the words before each of them
    position = 0
    while position < len(words):
        document, offset, length = index.find_piece(words[position : position + MAX_WORDS])
        own, begun, first_word, last_word = pieces[-1] if pieces else (-2, 0, 0, 0)
        end = begun + position - (counts[-1] if counts else 0)
        is_apart = any(last_word < border <= places[position] for border in borders)
        if document < 0 and own < 0 and pieces:
            pieces[-1] = (-1, 0, first_word, places[position])
        elif document == own >= 0 and offset < end < len(index.words[own]) and not is_apart:
            # before its end the document begins again: the script repeats words, such as a question in the answer
            pieces[-1] = (own, begun, first_word, places[position + length - 1])
        else:
            counts.append(position)
            pieces.append((document, offset, places[position], places[position + length - 1]))
        position += length
    placeholders = index.placeholders
    prefix = sum(token not in placeholders for token in row[first : pieces[0][2]]) if pieces else 0
    segments = []
    start = first
    for number, (document, offset, first_word, last_word) in enumerate(pieces):
        ended = [border for border in borders if last_word < border < last]
        # text that the job begins after the last word, and that has no words, is padding
        stop = ended[0] if ended else last
        if number + 1 < len(pieces):
            next_word = pieces[number + 1][2]
            marked = [border for border in borders if last_word < border <= next_word]
            stop = marked[0] if marked else next_word
            left = 0 if marked else prefix
            while not marked and stop > last_word + 1 and (left or row[stop - 1] in placeholders):
                stop -= 1
                left -= row[stop] not in placeholders
        count = len(index.vocabulary.read(row[first_word : last_word + 1]))
        segments.append(Segment(document, start, stop, offset, count))
        start = stop
    return segments


def strip_padding(row: Sequence[int], padding: int | None) -> tuple[int, int]:
    """Return [first, last) of a row without the padding at its ends."""
    first, last = 0, len(row)
    while padding is not None and last > first and row[last - 1] == padding:
        last -= 1
    while padding is not None and first < last and row[first] == padding:
        first += 1
    return first, last


def find_borders(tensors: Mapping[str, Tensor], row: int, seqlen: int) -> list[int]:
    """Return the job's starts of documents in a row, by cu_seqlens or by restarting positions.

    Where a mask of (batch, seqlen) ends the visible tokens, padding begins, for any padding token.
    """
    return sorted({*_find_document_borders(tensors, row, seqlen), *_find_mask_ends(tensors, row, seqlen)})


def _find_mask_ends(tensors: Mapping[str, Tensor], row: int, seqlen: int) -> list[int]:
    mask = tensors.get("attention_mask")
    if mask is None or mask.dim() != 2 or mask.shape[1] != seqlen or row >= mask.shape[0]:
        return []
    values = mask[row].tolist()
    return [place for place in range(1, seqlen) if values[place - 1] and not values[place]]


def _find_document_borders(tensors: Mapping[str, Tensor], row: int, seqlen: int) -> list[int]:
    for name in ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q"):
        if name in tensors:
            return [int(edge) for edge in tensors[name].flatten().tolist() if 0 < int(edge) < seqlen]
    positions = tensors.get("position_ids")
    if positions is None:
        return []
    while positions.dim() > 2:
        positions = positions[-1]
    values = positions[row if positions.shape[0] > row else 0].tolist()
    return [place for place in range(1, len(values)) if values[place] == 0]
