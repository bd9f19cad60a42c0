"""Pairs of answers: the documents of each pair, and the faults of pairs in a batch."""

import itertools
from collections.abc import Iterator

from attncheck.core.lists import group_values
from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.segments import Segment
from attncheck.rehearsal.worker.step import Piece


def find_pair(document: int) -> int:
    """Return the pair of a document: `materials.make_pairs` writes the chosen one, then the rejected one."""
    return document // 2


def is_chosen(document: int) -> bool:
    """Return whether a document has its pair's chosen answer."""
    return document % 2 == 0


def find_wrong_pairs(evidence: Evidence) -> Iterator[str]:
    """Yield the faults of the first step's pairs: an answer after another prompt, or without its counterpart."""
    yield from _find_foreign_answers(evidence)
    batches: dict[tuple[int, int], set[int]] = {}
    for piece in evidence.judged_pieces:
        if piece.segment.offset == 0:
            batches.setdefault((piece.call.rank, piece.call.batch), set()).add(piece.segment.document)
    pairs = [(find_pair(document), documents) for documents in batches.values() for document in documents]
    for names, remainder in (("rejected", 1), ("chosen", 0)):
        lacking = {pair for pair, documents in pairs if 2 * pair + remainder not in documents}
        if lacking:
            total = len({pair for pair, _ in pairs})
            yield (
                f"{len(lacking)} of {total} pairs are used without their {names} answer, the first pair {min(lacking)}"
            )


def _find_foreign_answers(evidence: Evidence) -> Iterator[str]:
    """Yield the answers that follow the prompt of another pair."""
    foreign: list[tuple[Piece, Segment]] = []
    rows = group_values(((id(piece.call), piece.row), piece) for piece in evidence.step.pieces)
    for pieces in rows.values():
        for first, second in itertools.pairwise(pieces):
            prompt, answer = first.segment, second.segment
            if min(prompt.document, answer.document) < 0 or find_pair(prompt.document) == find_pair(answer.document):
                continue
            is_whole = prompt.offset + prompt.words == len(evidence.step.index.words[prompt.document])
            if not is_whole and answer.offset >= sum(
                role != "assistant" for role in evidence.step.index.roles(answer.document)
            ):
                foreign.append((second, prompt))
    if foreign:
        piece, prompt = foreign[0]
        name = "chosen" if is_chosen(piece.segment.document) else "rejected"
        yield (
            f"{len(foreign)} answers follow another pair's prompt, the first the {name} answer of "
            f"pair {find_pair(piece.segment.document)} after the prompt of pair "
            f"{find_pair(prompt.document)}, {piece.place}"
        )
