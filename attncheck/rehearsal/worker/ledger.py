"""The ledger of documents in a first epoch: in the data set, drawn from it, and passed to the model.

The rows of the training data set and the plan of its sampler are the trainer's own, so that a whole epoch is judged
after a few of its steps. Documents that are in no row may be held out, or filtered: they are only noted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.records import EpochRecord
from attncheck.rehearsal.worker.segments import Segment

LOST_SHARE = 0.02  # share of documents: fewer are the end of a data set, or nearly equal documents
CUT_SHARE = 0.05  # share of documents: fewer may be at the ends of the data set's parts
LOST_WORDS = 6  # consecutive words of a document: fewer may match another's
MOST = 0.5  # share of the documents
FEW_SHARE = 0.05  # share of the documents
MIN_PACKED = 3  # documents per row: with fewer, filtered documents may be next to the ends of rows by chance
UNDRAWN_SHARE = 0.34  # share of documents: fewer may be held out by the sampler

Row = Sequence[Segment]


class Ledger:
    """The rows that the ranks load and draw in one epoch."""

    def __init__(self, evidence: Evidence, epochs: Sequence[EpochRecord]) -> None:
        """Find the documents of each rank's data set, with one record per rank."""
        self.words = evidence.step.index.words
        self.epochs = epochs
        different = {id(epoch): epoch for epoch in epochs if epoch.rows != epochs[0].rows}
        self._documents = {id(epoch): _find(evidence, epoch.rows) for epoch in (epochs[0], *different.values())}

    def read_rows(self, epoch: EpochRecord) -> Sequence[Row]:
        """Return the documents of each row of a rank's data set."""
        return self._documents.get(id(epoch)) or self._documents[id(self.epochs[0])]

    @cached_property
    def held(self) -> list[Row]:
        """The rows of the data set, of all ranks if each has its own."""
        return [row for rows in self._documents.values() for row in rows]

    @cached_property
    def drawn(self) -> list[Row]:
        """The rows that the samplers of all ranks draw in one epoch."""
        return [self.read_rows(epoch)[n] for epoch in self.epochs for batch in epoch.batches for n in batch]

    @cached_property
    def times(self) -> Counter[int]:
        """How often a rank's data set has each document: a script may repeat rows intentionally."""
        counts: Counter[int] = Counter()
        for rows in self._documents.values():
            counts |= _count_beginnings(rows)
        return counts

    @cached_property
    def overlap(self) -> str:
        """Why documents are drawn more than once, if no rank alone does so; "" otherwise."""
        ranks = [_count_beginnings(self.read_rows(epoch)[n] for b in epoch.batches for n in b) for epoch in self.epochs]
        texts = {
            True: f": each of {len(ranks)} ranks draws the same documents, so the loader is not split across ranks",
            False: ": different ranks draw them, so their parts of the data overlap",
        }
        is_alone = len(ranks) < 2 or any(count > 1 for own in ranks for count in own.values())
        return "" if is_alone else texts[all(own == ranks[0] for own in ranks)]

    @cached_property
    def replaces(self) -> bool:
        """Whether the samplers draw with replacement, which torch's support, and not only a few documents."""
        few = FEW_SHARE * len(list_documents(self.held))
        return any(epoch.replaces for epoch in self.epochs) and len(list_documents(self.drawn)) > few

    @cached_property
    def lost_words(self) -> dict[int, int]:
        """The number of words that are in no row, for each document with a part in one."""
        covered: dict[int, set[int]] = {}
        for row in self.held:
            for piece in row:
                covered.setdefault(piece.document, set()).update(range(piece.offset, piece.offset + piece.words))
        lost = {document: len(self.words[document]) - len(own) for document, own in covered.items() if document >= 0}
        return {document: count for document, count in lost.items() if count > LOST_WORDS}


def read_ledger(evidence: Evidence) -> Ledger | None:
    """Return the ledger of the training data set, None if no rank's rows hold whole documents."""
    objective = evidence.step.objective
    if evidence.rollouts or objective.policy is not None or objective.preference is not None:
        return None
    reached = list_documents(_list_reached(evidence))
    best: Ledger | None = None
    most = 0
    for loader in dict.fromkeys(epoch.loader for epoch in evidence.epochs):
        ledger = Ledger(evidence, [epoch for epoch in evidence.epochs if epoch.loader == loader])
        shared = len(reached & list_documents(ledger.held))
        if shared > most:
            best, most = ledger, shared
    return best


def find_lost(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield the documents that an epoch loses, or repeats although its sampler does not say so."""
    yield from _find_lost_words(ledger)
    yield from _find_lost_between_rows(ledger)
    yield from _find_few(ledger) if evidence.data_sets < 2 else ()
    if not ledger.replaces:
        yield from find_uneven(evidence, ledger)
    yield from _find_unreached(evidence, ledger)


def describe_epoch(evidence: Evidence, ledger: Ledger) -> str:
    """Return the totals of an epoch."""
    held, drawn = list_documents(ledger.held), list_documents(ledger.drawn)
    total = len(ledger.words)
    missing = f"; {total - len(held)} are in no row: held out, filtered or lost" if len(held) < total else ""
    missing += f"; words of {len(ledger.lost_words)} are in no row" if ledger.lost_words else ""
    share = "" if evidence.step.layout.size > 1 else f", of which an epoch draws {len(drawn)}"
    return f"the data set has {len(ledger.held)} rows with {len(held)} of {total} documents{share}{missing}"


def _find(evidence: Evidence, rows: Sequence[Sequence[int]]) -> list[Row]:
    return [evidence.step.index.find_segments(row, (), evidence.step.padding) for row in rows]


def _list_reached(evidence: Evidence) -> list[Row]:
    """Return the documents of each row that reached the model."""
    return _find(evidence, [row for taken in evidence.steps for row in taken.rows])


def list_documents(rows: Iterable[Row]) -> set[int]:
    """Return the documents in rows."""
    return {piece.document for row in rows for piece in row if piece.document >= 0}


def _count_beginnings(rows: Iterable[Row]) -> Counter[int]:
    return Counter(piece.document for row in rows for piece in row if piece.document >= 0 and piece.offset == 0)


def _find_lost_words(ledger: Ledger) -> Iterator[str]:
    """Yield a line if only parts of documents are in rows, as if packing drops their tails."""
    lost, held = ledger.lost_words, list_documents(ledger.held)
    if len(lost) > max(2, CUT_SHARE * len(ledger.words)):
        first = min(lost)
        yield (
            f"{len(lost)} of {len(held)} documents are only partly in the training data set: {sum(lost.values())} "
            f"words are in no row, {lost[first]} of them of document {first}"
        )


def _find_lost_between_rows(ledger: Ledger) -> Iterator[str]:
    """Yield a line if packing loses the document after the last one of each row, as if it did not fit."""
    held, rows = list_documents(ledger.held), [row for row in ledger.held if row]
    ends, starts = {row[-1].document for row in rows}, {row[0].document for row in rows}
    lost = [document for document in range(len(ledger.words)) if document not in held]
    between = [document for document in lost if document - 1 in ends and document + 1 in starts]
    if len(between) > max(2, LOST_SHARE * len(ledger.words), MOST * len(lost)) and len(held) > MIN_PACKED * len(rows):
        yield (
            f"{len(between)} documents are in no row, each the one between the last document of a row and the first of "
            f"the next, such as document {between[0]}: packing loses the document that does not fit"
        )


def _find_few(ledger: Ledger) -> Iterator[str]:
    """Yield a line if the data set repeats few documents many times."""
    counts = _count_beginnings(ledger.held)
    repeated = [count for count in counts.values() if count > 1]
    missing = len(ledger.words) - len(counts)
    if len(repeated) > MOST * len(counts) and missing > MOST * len(ledger.words):
        yield (
            f"the training data set holds {len(counts)} of {len(ledger.words)} documents, each up to {max(repeated)} "
            f"times, and none of the others"
        )


def find_replaced(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield a line if the data set lacks documents and has others again, as if its rows replace those that it lacks."""
    counts = _count_beginnings(ledger.held)
    again = [document for document, count in counts.items() if count > 1]
    missing = [document for document in range(len(ledger.words)) if document not in counts]
    extra = sum(counts.values()) - len(counts)  # in place of those that it lacks, and not of a row that is repeated
    is_replaced = len(missing) / 2 <= extra <= 2 * len(missing)
    if is_replaced and evidence.data_sets < 2 and len(missing) > max(2, LOST_SHARE * len(ledger.words)):
        yield (
            f"{len(missing)} of {len(ledger.words)} documents, such as {missing[-1]}, are in no row of the training "
            f"data set, and {len(again)} others, such as {again[0]}, are in it more than once"
        )


def find_uneven(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield a line if the sampler repeats documents while it leaves others out."""
    if evidence.step.layout.size > 1 or len(ledger.epochs) != len(evidence.step.ranks):
        return
    held, drawn = _count_beginnings(ledger.held), _count_beginnings(ledger.drawn)
    again = [document for document, count in drawn.items() if count > held[document]]
    missing = [document for document in held if document not in drawn]
    is_more_than_chance = len(missing) > MOST * len(held) and drawn.total() >= len(held)  # which leaves out 37%
    if min(len(again), len(missing)) > max(2, LOST_SHARE * len(held)) or is_more_than_chance:
        yield (
            f"in one epoch the sampler draws {len(again)} documents more than once and {len(missing)} of {len(held)} "
            f"never; the first of these is document {min(missing)}{ledger.overlap}"
        )


def find_undrawn(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield a line if the samplers of all ranks leave out many documents of the data set.

    The plan is no evidence if the rehearsal's steps exhaust it: it may be as long as they are.
    """
    if evidence.step.layout.size > 1 or len(ledger.epochs) != len(evidence.step.ranks):
        return
    if min(len(epoch.batches) for epoch in ledger.epochs) <= _count_taken(evidence):
        return
    held, drawn = list_documents(ledger.held), list_documents(ledger.drawn)
    if drawn and len(held - drawn) > UNDRAWN_SHARE * len(held):
        parts = [list_documents(ledger.read_rows(epoch)) for epoch in ledger.epochs]
        why = ": each rank loads its own part of the data, and its sampler takes a part of that: they are split twice"
        yield (
            f"in one epoch the sampler draws {len(drawn)} of the {len(held)} documents in the data set, and never the "
            f"others; the first of these is document {min(held - drawn)}"
            f"{why if len(parts) > 1 and sum(map(len, parts)) == len(held) else ''}"
        )


def _count_taken(evidence: Evidence) -> int:
    """Return the number of batches that a rank took in all steps."""
    return max((sum(map(len, losses)) for losses in zip(*(step.losses for step in evidence.steps))), default=0)


def _find_unreached(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield the documents that were drawn and never reached the model, among those in only one row.

    The plan is no evidence if the model got documents of batches beyond those that the ranks took: they came from an
    evaluation, or the loader drew in another order.
    """
    reached = list_documents(_list_reached(evidence))
    taken = _count_taken(evidence)
    counts = Counter(document for row in ledger.held for document in list_documents([row]))
    given: set[int] = set()
    for epoch in ledger.epochs:
        rows = ledger.read_rows(epoch)
        first: dict[int, int] = {}  # the batch in which a document is drawn first
        for number, batch in enumerate(epoch.batches):
            for document in list_documents(rows[n] for n in batch):
                first.setdefault(document, number)
        first = {document: number for document, number in first.items() if counts[document] == 1}
        numbers = [number for document, number in first.items() if document in reached]
        if sum(number >= taken for number in numbers) > LOST_SHARE * len(numbers):
            return
        last = min(max(numbers, default=-1), taken - 1)
        given |= {document for document, number in first.items() if number <= last}
    lost = given - reached
    if len(lost) > max(2, LOST_SHARE * len(given)):
        yield (
            f"{len(lost)} of the {len(given)} documents that the data loader drew never reached the model, the first "
            f"document {min(lost)}"
        )
