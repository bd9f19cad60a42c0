"""Checks that the batch consists of the documents: none is lost, repeated or truncated, and labels are on the right
tokens."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from attncheck.core.lists import group_values
from attncheck.core.rehearsal import FREE
from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.layouts import ORDER_TEXTS
from attncheck.rehearsal.worker.ledger import (
    Ledger,
    describe_epoch,
    find_lost,
    find_replaced,
    find_undrawn,
    find_uneven,
    list_documents,
    read_ledger,
)
from attncheck.rehearsal.worker.pairs import find_wrong_pairs, is_chosen
from attncheck.rehearsal.worker.records import IGNORED, ModelCall
from attncheck.rehearsal.worker.rollouts import find_lost_rollouts
from attncheck.rehearsal.worker.segments import Segment
from attncheck.rehearsal.worker.step import Piece

MIN_LATE = 3  # answers whose labels begin equally late
MAX_CUT_SHARE = 0.02  # documents: if a row is cut, a few words may match another document's
SPLIT_SHARE = 0.5  # the share of pieces without an end to those without a beginning that shows rows cut from a stream
ORDERED_STEPS = 5  # steps with rising document numbers show data in order
UNJUDGED = (
    "not judged by this check with your own data: whether labels are placed correctly, and whether rows are dropped or "
    "truncated"
)
SAME_ROWS = "not judged: whether documents are used twice, because {} data sets are loaded and have the same rows here"
CODE_FAULTS = {  # part of the script's code, as the watcher's `script_code.py` names it -> what is wrong with it
    "misplaced": "{} returns the rewards in another order than the completions: each is right, if called alone",
    "merged": "{} returns the reward of a prompt's last completion for all of them, so no advantage is left",
    "uncounted": "{} does not return one finite reward for each completion",
    "as_texts": (
        "{} returns one reward for all completions: it looks into them as texts, but each is a list of messages"
    ),
    "split_twice": (
        "an epoch has {}: the loader's DistributedSampler splits them across ranks, and accelerate's prepare again"
    ),
}
CODE_TEXTS = {  # the same, of what an author may intend
    "dropped": (
        "the trainer drops the columns {} of the data, which the script's loss or collator reads: "
        "remove_unused_columns is not false"
    ),
    "unset": (
        "each epoch has the same order, if there are several: the loop in {} does not call set_epoch of its sampler, "
        "which shuffles by that number"
    ),
    "placed": (
        "the rewards of {} depend on the places of prompts in the batch: if its halves change places, others are "
        "returned, as if a column is read at another row's place"
    ),
    "unused": (
        "the text of the formatting function {} is not trained: TRL tokenizes the messages or prompts that the rows "
        "still have"
    ),
}
HEADERS = {  # how `watch_prompts` in the watcher's `script_code.py` names what is written -> what is wrong with it
    "headless": (
        "no answer follows the template's header of the assistant's turn: apply_chat_template in {} writes prompts "
        "without it, because add_generation_prompt is not true"
    ),
    "opened": (
        "each text ends with the header of another assistant's turn, because apply_chat_template in {} has "
        "add_generation_prompt: the model learns to open a turn after its answer"
    ),
}
NOISE = "not judged: {} of {} input tokens differ from their labels, which hold the documents, as if noise is added"
PADDED_TO = 8  # tokens: the length of rows is often a multiple of it
WHOLE_WORDS = 6  # a piece with fewer words does not identify its document


def run(evidence: Evidence) -> CheckResult:
    """Compare the batches with the documents, and the labels with the objective."""
    if evidence.step.index.is_own:
        return _judge_own(evidence)
    repeated = tuple(find_repeated_prompts(evidence))
    cuts, split = ([], []) if repeated else _find_cuts(evidence, _list_rows(evidence))
    ledger = read_ledger(evidence)
    if cuts and ledger is not None:  # if rows are cut from a stream and shuffled, pieces that continue come later
        held, split = _find_cuts(evidence, ledger.held)
        cuts = cuts if held or not split else []
    preference = evidence.step.objective.preference
    pairs = tuple(find_wrong_pairs(evidence)) if preference is not None and preference.is_paired else ()
    lost = () if pairs else (*_find_mixed_documents(evidence), *_find_holes(evidence), *_find_gaps(evidence))
    # If a script chooses the number of generations itself, several are the same synthetic answer.
    chooses = bool(evidence.rollouts) and evidence.step.objective.policy is None
    chooses = chooses or (ledger is not None and ledger.replaces) or evidence.data_sets > 1
    warnings = list(repeated if evidence.makes_rows else ())  # a script may write a question twice
    repeats = () if chooses or repeated else (*_find_repeats(evidence, ledger), *find_lost_rollouts(evidence))
    violations = _tell_code(evidence, CODE_FAULTS)  # causes before their effects
    violations += [*_find_foreign_words(evidence), *pairs, *lost, *repeats, *cuts]
    violations += () if evidence.makes_rows else repeated
    violations += _find_doubled_beginnings(evidence)
    if ledger is not None:
        violations += find_lost(evidence, ledger)
        warnings += (find_uneven if ledger.replaces else find_undrawn)(evidence, ledger)
        warnings += [] if violations else find_replaced(evidence, ledger)
    warnings += [*_tell_code(evidence, CODE_TEXTS), *_find_misplaced_headers(evidence)]
    wrong_pictures, picture_notes = _judge_pictures(evidence)
    violations += wrong_pictures
    if evidence.step.labels_enter:
        violations += _find_wrong_labels(evidence)
        warnings += _find_crossing_labels(evidence)
        if evidence.step.objective.targets == "labelled":
            violations += [*_find_unlabelled_answers(evidence), *_find_unlabelled_ends(evidence)]
            violations += [*_find_hidden_ends(evidence), *_find_learned_speakers(evidence, {"user"})]
            warnings += _find_learned_speakers(evidence, {"tool"})
            violations += _find_late_answers(evidence)
            warnings += _find_short_masks(evidence)
    return CheckResult(
        "batch",
        violations=tuple(violations),
        warnings=tuple(warnings),
        notes=(
            _describe_batches(evidence),
            *([describe_epoch(evidence, ledger)] if ledger is not None else []),
            *([SAME_ROWS.format(evidence.data_sets)] if evidence.data_sets > 1 else []),
            *split,
            *picture_notes,
            *_note_labels(evidence),
        ),
    )


def describe_noise(evidence: Evidence, check: str) -> str:
    """Return a line if the step has random noise, which cannot be recomputed; "" otherwise.

    Either a hook of the script draws it, or some input tokens are not their labels', which make up whole documents.
    """
    hooks = dict.fromkeys(hook for record in evidence.step.ranks for own in record.modules for hook in own["noise"])
    if hooks and check != "batch":  # which compares tokens
        return f"not judged: the script's hook {next(iter(hooks))}, draws random numbers in each step"
    pairs = [
        pair
        for call in evidence.step.calls
        for pair in zip(call.input_ids.tolist(), call.tensors.get("labels", call.input_ids).tolist())
    ]
    right = [[own if label == IGNORED else label for own, label in zip(*pair)] for pair in pairs]
    altered, total = sum(a != b for (ids, _), own in zip(pairs, right) for a, b in zip(ids, own)), sum(map(len, right))
    if not 0 < 2 * altered < total or evidence.step.index.is_own:
        return ""
    noisy, held = ([p for row in rows for p in row_segments(evidence, row)] for rows in (next(zip(*pairs)), right))
    return NOISE.format(altered, total) * (len(held) < len(noisy) and all(piece.document >= 0 for piece in held))


def _judge_own(evidence: Evidence) -> CheckResult:
    """Judge batches of the user's rows: labels against tokens, and duplicate rows."""
    enter = evidence.step.labels_enter
    return CheckResult(
        "batch",
        violations=(*(_find_wrong_labels(evidence) if enter else ()), *_find_doubled_beginnings(evidence)),
        warnings=(*_find_repeated_rows(evidence), *(_find_crossing_labels(evidence) if enter else ())),
        notes=(_describe_batches(evidence), *_tell_rows(evidence), UNJUDGED, *_note_labels(evidence)),
    )


def _tell_rows(evidence: Evidence) -> Iterator[str]:
    unknown = len(evidence.step.index.documents)
    known = sum(piece.segment.document < unknown for piece in evidence.step.pieces)
    if not known:
        yield "not judged: whether data rows are mixed, because none of their text was found in the batches"
    yield f"of {len(evidence.step.pieces)} documents {known} were matched by their text to one of {unknown} data rows"


def _find_repeated_rows(evidence: Evidence) -> Iterator[str]:
    """Yield rows of the data that were used twice before all rows were used once.

    A trainer that filters rows may be in its second epoch, so this does not prove a fault.
    """
    unknown = len(evidence.step.index.documents)
    segments = [segment for row in _list_rows(evidence) for segment in row]
    drawn = [s.document for s in segments if s.document < unknown and s.offset == 0]
    seen = Counter(drawn)
    repeated = _list_repeated(evidence, drawn)
    if len(repeated) > max(2, MAX_CUT_SHARE * len(seen)) and len(segments) < unknown:
        yield (
            f"{len(repeated)} rows of the data were used more than once among the first "
            f"{len(segments)} documents, while {unknown - len(seen)} of {unknown} rows were not used "
            f"at all, the first row {min(repeated) + 1}"
        )


def _describe_batches(evidence: Evidence) -> str:
    step = evidence.step
    rows = sum(call.input_ids.shape[0] for call in step.calls)
    tokens = sum(call.input_ids.numel() for call in step.calls)
    targets = sum(int(piece.is_target.sum()) for piece in step.pieces)
    ranks, batches, size = len(step.ranks), len(step.calls), step.layout.size
    shared = f" over {size} ranks each ({ORDER_TEXTS[step.layout.order]})" if size > 1 else ""
    return (
        f"the first step: {ranks} rank{'s' * (ranks != 1)}, {batches} batch{'es' * (batches != 1)}, {rows} "
        f"row{'s' * (rows != 1)}"
        f"{shared}, {tokens} tokens, {len(step.pieces)} documents or pieces of one, "
        f"{targets} targets"
    )


def _note_labels(evidence: Evidence) -> tuple[str, ...]:
    if evidence.step.labels_enter:
        return ()
    return ("labels are not passed to the model; the loss and the gradients show whether they are right",)


def _tell_code(evidence: Evidence, texts: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the script's own code for data and rewards, as the watcher noted it."""
    code = evidence.taken[0].code if evidence.taken else {}
    return [text.format(", ".join(code[part])) for part, text in texts.items() if code.get(part)]


def _find_holes(evidence: Evidence) -> Iterator[str]:
    """Yield a line if rows lack words in the middle of documents."""
    words = evidence.step.index.words
    holes = [
        (first, second.offset - first.offset - first.words)
        for row in _list_rows(evidence)
        for first, second in itertools.pairwise(row)
        if first.document == second.document >= 0 and second.offset > first.offset + first.words
    ]
    if len(holes) > max(2, MAX_CUT_SHARE * len(words)):
        first, _ = holes[0]
        role = evidence.step.index.roles(first.document)[first.offset + first.words]
        yield (
            f"{len(holes)} documents lack words in their middle: {sum(lost for _, lost in holes)} words are left out, "
            f"the first of them the {role}'s in document {first.document}"
        )


def _find_foreign_words(evidence: Evidence) -> Iterator[str]:
    foreign = [piece for piece in evidence.step.pieces if piece.segment.document < 0]
    if foreign:
        words = sum(piece.segment.words for piece in foreign)
        yield (
            f"{words} words of {foreign[0].place} belong to no document: documents are mixed, or are not from the data"
        )


def _find_repeats(evidence: Evidence, ledger: Ledger | None) -> Iterator[str]:
    """Yield the documents that were used twice before the data were exhausted."""
    segments = [segment for row in _list_rows(evidence) for segment in row if segment.words >= WHOLE_WORDS]
    drawn = [segment.document for segment in segments if segment.document >= 0 == segment.offset]
    seen, times = Counter(drawn), ledger.times if ledger is not None else Counter[int]()
    repeated = [document for document in _list_repeated(evidence, drawn) if seen[document] > times[document]]
    held = len(list_documents(ledger.held)) if ledger is not None else len(evidence.step.index.documents)
    if len(repeated) > max(2, MAX_CUT_SHARE * len(seen)) and len(seen) < held * 0.9:  # a script may take a few
        total = sum(seen.values())
        lines = evidence.taken[0].code.get("workers", ()) if evidence.taken else ()
        why = (
            ledger.overlap
            if ledger is not None
            else "".join(f": {line} (get_worker_info divides it)" for line in lines)
        )
        yield (
            f"{len(repeated)} documents were used more than once among the first {total}, "
            f"while {held - len(seen)} had not been used at all"
            f"{why}"
        )


def _list_repeated(evidence: Evidence, drawn: Sequence[int]) -> list[int]:
    """Return the documents that were used more than once; none if later epochs of a few documents show only that.

    Then all documents come once before one comes again, and they are more than those of two steps.
    """
    seen = Counter(drawn)
    is_few = len({*drawn[: len(seen)]}) == len(seen) > 2 * len(evidence.step.pieces)
    return [] if is_few else [document for document, count in seen.items() if count > 1]


def find_repeated_prompts(evidence: Evidence) -> Iterator[str]:
    """Yield a line if rows have a prompt twice before its answer, as if the answer's field contains it too."""
    index, count = evidence.step.index, 0
    rows = [row for row in _list_rows(evidence) if row]
    for row in rows:
        for first, second in itertools.pairwise(row):
            prompt = index.words[first.document][: first.words] if first.document >= 0 == first.offset else ()
            roles = index.roles(first.document)[: first.words + 1] if prompt else []
            is_prompt = "assistant" not in roles[:-1] and roles[-1:] == ["assistant"]
            count += is_prompt and second.offset == 0 and index.words[second.document][: first.words] == prompt
    if count > max(2, MAX_CUT_SHARE * len(rows)):
        yield f"{count} of {len(rows)} rows have their prompt twice: the field of the answer contains it too"


def _list_rows(evidence: Evidence) -> list[list[Segment]]:
    """Return the pieces of each row of all steps, in order."""
    return [row_segments(evidence, row) for taken in evidence.steps for row in taken.rows]


def _find_mixed_documents(evidence: Evidence) -> Iterator[str]:
    """Yield documents that continue with another one's words; ends of rows cut from a stream do not count."""
    words = evidence.step.index.words
    mixed = [
        (first, second)
        for row in _list_rows(evidence)
        for first, second in itertools.pairwise(row)
        if min(first.document, second.document) >= 0
        and first.document != second.document
        and min(first.words, second.words) >= WHOLE_WORDS
        and first.offset + first.words < len(words[first.document]) - WHOLE_WORDS
        and second.offset > WHOLE_WORDS
    ]
    if len(mixed) > max(2, MAX_CUT_SHARE * len(words)):
        first, second = mixed[0]
        yield (
            f"{len(mixed)} documents continue with another document's words in the middle of a row, such as words of "
            f"{second.document} in document {first.document}: documents are mixed"
        )


def _find_gaps(evidence: Evidence) -> Iterator[str]:
    """Yield the documents that were left out, if the data are used in order."""
    steps = [
        [segment.document for row in taken.rows for segment in row_segments(evidence, row) if segment.document >= 0]
        for taken in evidence.steps
    ]
    steps = [sorted(documents) for documents in steps if documents]
    middles = [documents[len(documents) // 2] for documents in steps]
    if len(middles) < ORDERED_STEPS or any(after <= before for before, after in itertools.pairwise(middles)):
        return
    seen = {document for documents in steps for document in documents}
    span = range(min(seen), middles[-1])
    documents = evidence.step.index.documents
    lost = [document for document in span if document not in seen]
    # If pairs are split, all chosen answers may come before the others.
    lost = [d for d in lost if (d ^ 1) not in seen or documents[d][0] != documents[d ^ 1][0]]
    gaps = len({*lost} - {document + 1 for document in lost})
    is_of_ranks = gaps < len(evidence.step.ranks)  # where another rank's part begins: a script may skip rows of each
    if len(lost) > max(2, MAX_CUT_SHARE * len(span)) and not is_of_ranks:
        yield (
            f"{len(lost)} of the {len(span)} documents between the first and the last one used were skipped, the "
            f"first is document {lost[0]}"
        )


def row_segments(evidence: Evidence, row: Sequence[int]) -> list[Segment]:
    """Return the pieces of documents in a row of a later step, whose boundaries were not kept."""
    return evidence.step.index.find_segments(row, (), evidence.step.padding)


def _find_cuts(evidence: Evidence, rows: Sequence[Sequence[Segment]]) -> tuple[list[str], list[str]]:
    """Return faults of documents that stop before their end and do not continue, and notes on split ones.

    A document may continue in a row that was not reached. If many stop and as many continue without a beginning, rows
    are cut from one stream of documents, and nothing is lost.
    """
    pieces = [segment for row in rows for segment in row if segment.document >= 0 and segment.words >= WHOLE_WORDS]
    words = evidence.step.index.words
    heads = [segment for segment in pieces if segment.offset == 0]
    cut = [segment for segment in heads if segment.words < len(words[segment.document]) - WHOLE_WORDS]
    headless = [segment for segment in pieces if segment.offset]
    allowed = max(2, MAX_CUT_SHARE * len(pieces))
    fewer, more = sorted((len(cut), len(headless)))
    if fewer > allowed and fewer > SPLIT_SHARE * more:
        return [], [f"{len(cut)} documents are split across rows, and {len(headless)} pieces continue in another row"]
    if len(cut) > max(allowed, len(headless)):
        lost = sum(len(words[segment.document]) - segment.words for segment in cut)
        return [f"{len(cut)} of {len(heads)} documents are truncated: {lost} words are never used"], []
    if len(headless) > allowed:
        return [f"{len(headless)} of {len(pieces)} documents are used without their beginning"], []
    return [], []


def _find_wrong_labels(evidence: Evidence) -> Iterator[str]:
    """Yield the faults of labels: on another token, on padding, missing or too many."""
    shifted = wrong = total = padded = sided = 0
    for call in evidence.step.calls:
        labels, ids = call.tensors.get("labels"), call.input_ids
        if labels is None or labels.shape != ids.shape:
            continue
        scored = labels != IGNORED
        total += int(scored.sum())
        differs = scored & (labels != ids)
        wrong += int(differs.sum())
        shifted += int((differs[:, :-1] & (labels[:, :-1] == ids[:, 1:])).sum())
        sided += _count_other_side(evidence, call, differs)
        if evidence.step.padding is not None:
            padded += int((scored & (evidence.step.mark_padding(call) == evidence.step.padding)).sum())
    if shifted > 0.5 * total:
        yield (
            f"labels are shifted before they reach the model, which shifts them again: {shifted} of {total} are "
            "one token off"
        )
    elif wrong and sided == wrong:
        yield f"{wrong} of {total} labels are off by their row's padding: labels are padded on the other side"
        return
    elif wrong:
        yield f"{wrong} of {total} labels differ from the token at their position"
    if padded:
        yield f"{padded} of {total} labels are on padding"
    if not wrong and evidence.step.objective.targets not in FREE:
        yield from _find_wrong_targets(evidence)


def _count_other_side(evidence: Evidence, call: ModelCall, differs: Tensor) -> int:
    """Return how many wrong labels are those of tokens that are as far away as their row has padding."""
    count = 0
    marked = evidence.step.mark_padding(call)
    for labels, ids, wrong, row in zip(call.tensors["labels"], call.input_ids, differs, marked, strict=True):
        padding = int((row == evidence.step.padding).sum()) if evidence.step.padding is not None else 0
        if padding and bool(wrong.any()):
            count += max(int((wrong & (labels == ids.roll(way * padding))).sum()) for way in (1, -1))
    return count


def _find_wrong_targets(evidence: Evidence) -> Iterator[str]:
    missing = extra = 0
    where_missing, where_extra = "", ""
    is_word = evidence.step.index.vocabulary.is_word
    for piece in evidence.judged_pieces:
        expected = evidence.step.expected_targets(piece.segment, piece.tokens)
        for number, (wanted, scored) in enumerate(zip(expected.tolist(), piece.is_target.tolist(), strict=True)):
            if not is_word(piece.tokens[number + 1]) or wanted == scored:
                continue
            missing, extra = missing + wanted, extra + scored
            where_missing = where_missing or (piece.place if wanted else "")
            where_extra = where_extra or (piece.place if scored else "")
    total = sum(int(piece.is_target.sum()) for piece in evidence.judged_pieces)
    if missing:
        yield f"{missing} words that should be learned have no label, the first in {where_missing} ({total} have one)"
    if extra:
        who = "the user's words" if evidence.step.objective.targets in ("assistant", "last") else "words"
        yield f"{extra} labels are on {who}, which should not be learned; the first in {where_extra}"
    yield from _find_unlabelled_ends(evidence)


def _find_unlabelled_answers(evidence: Evidence) -> Iterator[str]:
    """Yield a line if the user's words are learned but no answer's, if no objective decides what is learned."""
    counts = Counter(word for seen in _list_learned(evidence) for word in seen)
    if counts["user", True] and counts["assistant", False] and not counts["assistant", True]:
        yield (
            f"none of the {counts['assistant', False]} words of answers has a label, but "
            f"{counts['user', True]} of the user's do: prompts are learned instead of answers"
        )


def _find_late_answers(evidence: Evidence) -> Iterator[str]:
    """Yield a line if the mask of prompts is equally many words too long in every document."""
    late: list[int] = []
    for seen in _list_learned(evidence):
        answers = [place for place, (role, _) in enumerate(seen) if role == "assistant"]
        if answers and answers[0] and not any(scored for _, scored in seen[: answers[0]]):
            late.append(next((n for n, place in enumerate(answers) if seen[place][1]), len(answers)))
    if len(late) >= MIN_LATE and min(late) == max(late) > 0:
        yield (
            f"no label is on the first {late[0]} words of each of {len(late)} answers, but the next words have one: "
            "the mask of the prompt is too long"
        )


def _find_learned_speakers(evidence: Evidence, speakers: set[str]) -> Iterator[str]:
    """Yield a line if whole later turns of other speakers than the model are learned, and no question before them."""
    learned: Counter[str] = Counter()
    for seen in _list_learned(evidence):
        turns = [(who, all(own for _, own in words)) for who, words in itertools.groupby(seen, lambda word: word[0])]
        prompt = list(itertools.takewhile(lambda turn: turn[0] != "assistant", turns))
        if prompt and not any(scored for _, scored in prompt):
            learned.update(who for who, is_learned in turns[len(prompt) :] if is_learned and who in speakers)
    for who, count in learned.items():
        yield (
            f"{count} turns of the {who} have labels, although the first questions have none: the mask ends at the "
            "first answer, or leaves this speaker out"
        )


def _list_learned(evidence: Evidence) -> Iterator[list[tuple[str, bool]]]:
    """Yield, for each piece, the speaker of each word after its first token, and whether it is a target."""
    for piece in evidence.judged_pieces:
        roles = evidence.step.list_roles(piece.segment, piece.tokens)[1:]
        words = map(evidence.step.index.vocabulary.is_word, piece.tokens[1:])
        yield [(role, bool(scored)) for role, is_word, scored in zip(roles, words, piece.is_target) if is_word]


def _find_short_masks(evidence: Evidence) -> Iterator[str]:
    """Yield a line if the mask of each prompt ends after the same few of its words, and its rest is learned."""
    masked = [next((n for n, (_, is_learned) in enumerate(seen) if is_learned), 0) for seen in _list_learned(evidence)]
    rests = [seen[count:] for seen, count in zip(_list_learned(evidence), masked)]
    is_short = all(rest and rest[0][0] == "user" and all(is_learned for _, is_learned in rest) for rest in rests)
    lengths = {sum(role == "user" for role, _ in rest) for rest in rests}
    if len(masked) >= MIN_LATE and min(masked) == max(masked) > 0 and is_short and len(lengths) > 1:
        yield (
            f"the labels of all {len(masked)} documents begin within the user's words, after the first {masked[0]}: if "
            "the prompt is masked, its length is wrong, such as that of a tokenizer's dictionary"
        )


def _judge_pictures(evidence: Evidence) -> tuple[list[str], list[str]]:
    """Return faults of the placeholders of documents' images, and notes."""
    book = evidence.truth.pictures
    if book is None:
        return [], []
    with_pictures = [piece for piece in evidence.judged_pieces if book.numbers[piece.segment.document] is not None]
    counts = [piece.tokens.count(book.token) for piece in with_pictures]
    whole = sum(
        count == book.count_tokens(piece.segment.document) for piece, count in zip(with_pictures, counts, strict=True)
    )
    learned = sum(
        int(
            (
                piece.is_target
                & (piece.call.input_ids[piece.row][piece.segment.start + 1 : piece.segment.stop] == book.token)
            ).sum()
        )
        for piece in with_pictures
    )
    notes = [
        f"{len(with_pictures)} of {len(evidence.judged_pieces)} documents have an image; {sum(counts)} placeholders "
        f"in all"
    ]
    if not any(counts):
        return [], ["the images of the data are not used, so they are not judged"]
    violations = []
    if whole < len(with_pictures):
        violations.append(
            f"{len(with_pictures) - whole} of {len(with_pictures)} images are truncated or have no placeholders"
        )
    if learned and evidence.step.objective.targets in ("assistant", "last"):
        violations.append(f"{learned} image placeholders have a label, although they should not be learned")
    elif learned:
        notes.append(f"{learned} image placeholders are learned, as are all tokens")
    return violations, notes


def _find_doubled_beginnings(evidence: Evidence) -> Iterator[str]:
    """Yield a line if documents begin with the BOS token twice: from a template and from the tokenizer."""
    begin = getattr(evidence.truth.model.config, "bos_token_id", None)
    heads = [piece for piece in evidence.judged_pieces if piece.segment.offset == 0 and piece.tokens[0] == begin]
    doubled = [piece for piece in heads if piece.tokens[1] == begin]
    if doubled:
        yield (
            f"{len(doubled)} of {len(evidence.judged_pieces)} documents begin with the BOS token "
            f"{begin} twice: a template and the tokenizer both add it; the first in {doubled[0].place}"
        )


def _find_unlabelled_ends(evidence: Evidence) -> Iterator[str]:
    groups = group_values(
        (_name_kind(piece, evidence), piece) for piece in evidence.judged_pieces if _is_whole(piece, evidence)
    )
    for name, whole in groups.items():
        if not any(_ends_in_target(piece, evidence) for piece in whole):
            is_ended = any(_has_end(piece, evidence) for piece in whole)
            end = f"the token that ends {name} has a label in none of {len(whole)}"
            end = end if is_ended else f"no token ends {name} in any of {len(whole)}"
            yield f"{end}: the model does not learn to stop"


def _find_misplaced_headers(evidence: Evidence) -> Iterator[str]:
    """Yield a line if a script's prompts lack the header of the answer, or its texts end with one."""
    code, is_word = evidence.taken[0].code if evidence.taken else {}, evidence.step.index.vocabulary.is_word
    rows = [
        f" {' '.join('w' if is_word(token) else str(token) for token in p.tokens)} " for p in evidence.judged_pieces
    ]
    for kind, text in HEADERS.items():
        line, *header = code.get(kind) or ("",)
        places = [row if kind == "headless" else row.rpartition(" w ")[2] for row in rows]
        is_there = [f" {' '.join(header)} " in f" {place}" for place in places]
        if header and places and (not any(is_there) if kind == "headless" else all(is_there)):
            yield text.format(line)


def _find_hidden_ends(evidence: Evidence) -> Iterator[str]:
    """Yield a line if a mask hides the last token of every row, also the longest: it is no padding, but a document's.

    Rows may also be padded to one length, or to a multiple of eight.
    """
    ends: set[int] = set()
    widths: set[int] = set()
    for call in (call for record in evidence.taken for call in record.calls):
        mask, labels = (call.tensors.get(name) for name in ("attention_mask", "labels"))
        if mask is None or labels is None or mask.shape != call.input_ids.shape or bool(mask[:, -1].any()):
            return
        rows, last = range(len(mask)), (mask * torch.arange(1, mask.shape[1] + 1)).argmax(1) + 1
        if bool((labels[rows, last] != IGNORED).any()):
            return
        widths.add(mask.shape[1])
        ends |= {*call.input_ids[rows, last].tolist()}
    if len(ends) == 1 and len(widths) > 1 and any(width % PADDED_TO for width in widths):
        yield (
            f"the last token of every document, {ends.pop()}, is hidden by the attention mask and has no label, as if "
            "it were padding: padding has the same token, so the model does not learn to stop"
        )


def _name_kind(piece: Piece, evidence: Evidence) -> str:
    """Return the name of a piece's source: a document, or one of a pair's two answers."""
    if evidence.step.objective.preference is None:
        return "a document"
    return "a chosen answer" if is_chosen(piece.segment.document) else "a rejected answer"


def _is_whole(piece: Piece, evidence: Evidence) -> bool:
    """Return whether a document is complete with its end; one without an end, if only its answer is learned."""
    words = evidence.step.index.words[piece.segment.document]
    if piece.segment.offset or piece.segment.words != len(words):
        return False
    by_script = evidence.step.objective.targets == "labelled"
    return _has_end(piece, evidence) or (by_script and piece.is_target[[0, -1]].tolist() == [False, True])


def _has_end(piece: Piece, evidence: Evidence) -> bool:
    return not evidence.step.index.vocabulary.is_word(piece.tokens[-1])


def _ends_in_target(piece: Piece, evidence: Evidence) -> bool:
    """Return whether a token of markup after a document's last word is a target."""
    is_word = evidence.step.index.vocabulary.is_word
    last_word = max(place for place, token in enumerate(piece.tokens) if is_word(token))
    return bool(piece.is_target[last_word:].any())


def _find_crossing_labels(evidence: Evidence) -> Iterator[str]:
    """Yield a line if labels cross from one document of a row to the next, not from padding to the first."""
    crossing = [piece for piece in evidence.step.pieces if piece.first_is_target and piece.segment.offset == 0]
    before = {(id(piece.call), piece.row): piece.segment.start for piece in reversed(evidence.step.pieces)}
    crossing = [piece for piece in crossing if piece.segment.start > before[id(piece.call), piece.row]]
    if crossing:
        yield (
            f"the first token of {len(crossing)} documents has a label, so the previous document's last token is "
            "trained to predict it"
        )
