"""The task that reads which tokens a launch learns, by role, from the labels of its batches.

A turn is found by its text in the row's decoded tokens, without blanks, because tokenizers treat them differently. Text
between turns belongs to the chat template: the first special token after a turn ends it.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from attncheck.core import codec
from attncheck.core.rehearsal import FREE, Targets
from attncheck.core.results.labels import ROLE_TEXTS, Role, RoleCount, Span

IGNORED = -100
UNCLEAR = -101  # watcher/recorder.py
SHIFTS = {1: "the next token", -1: "the token before"}
MOVED = {
    -1: "the mask is one token early: the token before each answer is learned, and the token that ends it is not",
    1: "the mask is one token late: the first token of each answer is not learned, and the token after it is",
}
REPLACEMENT, MAX_BYTES = "\ufffd", 4  # what a part of a letter's bytes is decoded to; the most bytes of a letter
MAX_ROWS = 4  # the most rows that are shown
MAX_SHOWN = 600  # tokens of a row
MAX_MARKUP = 40  # letters that are shown
BEGINNING = 8  # letters that identify a turn cut at the row's end
ANSWERS: tuple[Role, ...] = ("assistant", "thinking", "call")
LAST: tuple[Role, ...] = ("assistant", "thinking")  # the parts of the last answer
ROLE_NAME = re.compile("assistant|model|chatbot", re.IGNORECASE)  # in the chat template's header of an answer
TWICE = re.compile(r"(.{6,})\1$")
PLACED = ("image", "video", "audio")  # inserted in place of tokens
GIVEN: tuple[Role, ...] = ("system", "user", "tool")  # turns that an assistant must not produce
REQUIRED: Mapping[Targets, tuple[Role, ...]] = {"all": (*GIVEN, *ANSWERS), "last": LAST}
NO_LABELS = "no labels are passed to the model, and no gradient of its logits or hidden states shows what is learned"


@dataclass
class Row:
    """A row of a batch by token: its id and text, its role, whether it is labelled, and the label itself."""

    tokens: list[int]
    labels: list[int]
    texts: list[str]
    roles: list[Role] = field(default_factory=list)
    turns: list[tuple[int, int, int, Role]] = field(default_factory=list)  # conversation, start, stop, role
    starts: set[int] = field(default_factory=set)  # starts of documents after the row's first
    is_cut: bool = False  # whether it ends inside a turn
    begins_inside: bool = False  # whether it begins inside a turn
    present: set[int] = field(default_factory=set)  # turns of the data, by number
    absent: set[int] = field(default_factory=set)  # others of conversations in the row, which are not cut off
    dropped: set[int] = field(default_factory=set)  # system turns of conversations in the row
    doubled: Counter[Role] = field(default_factory=Counter)  # turns that are in the row twice, with one counterpart
    unordered: int = 0  # turns that precede an earlier one of their conversation
    again: list[int] = field(default_factory=list)  # places of end tokens that repeat the end of an answer
    unclear: set[int] = field(default_factory=set)  # places of tokens that may be learned

    @property
    def learned(self) -> list[bool]:
        """Whether each token is a target."""
        return [label != IGNORED for label in self.labels]


def judge(
    message: dict[str, Any],
    send: Callable[[dict[str, Any]], None],
    make_finder: "Callable[[Path], TurnFinder] | None" = None,
) -> None:
    """Handle a job of one item: read the batches in `message["stage"]`; send rows, counts, problems and notes."""

    (item,) = message["items"]
    send({"started": item})
    folder = Path(message["stage"])
    paths = sorted((folder / "watch").glob("calls-*.json"))
    calls = [call for path in paths for call in json.loads(path.read_text())]
    answer = read_labels(folder, calls, message["targets"], message["renders"], make_finder)
    send({"unanswered": answer} if isinstance(answer, str) else {"item": item, "answer": answer})


def read_labels(
    folder: Path,
    calls: Sequence[Mapping[str, Any]],
    targets: Targets,
    renders: bool,
    make_finder: "Callable[[Path], TurnFinder] | None" = None,
) -> dict[str, Any] | str:
    """Return rows, counts, problems and notes of calls of the model, or why they are not known."""
    from attncheck.rehearsal.worker import light

    tokenizer = light.load_tokenizer(folder / "model")
    rows = list(_iter_rows(calls, tokenizer))
    if not rows:
        return NO_LABELS
    finder = (make_finder or TurnFinder)(folder)
    placeholders = read_placeholders(folder / "model" / "config.json")
    for row in rows:
        assign_roles(row, finder, tokenizer, placeholders)
        finder.hide_unknown(row)
    if not any(row.turns for row in rows) and any(any(row.learned) for row in rows):
        return "no turn of the conversations was found in the batches, so roles are unknown"
    if reason := _find_unclear(rows, targets):
        return reason
    path = folder / "watch" / "prompt.json"
    prompt = json.loads(path.read_text()) if path.exists() else None
    problems, notes = judge_rows(rows, tokenizer, targets, renders, prompt, finder.knows_all)
    return {
        "rows": [codec.to_plain(span_row(row, tokenizer)) for row in rows[:MAX_ROWS]],
        "counts": [codec.to_plain(count) for count in count_roles(rows)],
        "problems": problems,
        "notes": notes,
        "total_rows": len(rows),
    }


def read_placeholders(path: Path) -> set[int]:
    """Return the tokens of a configuration that features of images, video or sound replace."""
    document = json.loads(path.read_text()) if path.exists() else {}
    fields = (f"{kind}_token_{ending}" for kind in PLACED for ending in ("id", "index"))
    return {document[name] for name in fields if isinstance(document.get(name), int)}


def _iter_rows(calls: Sequence[Mapping[str, Any]], tokenizer: Any) -> Iterator[Row]:
    """Yield the rows of the first step's batches that have labels."""
    texts: dict[int, str] = {}

    def decode(token: int) -> str:
        if token not in texts:
            texts[token] = tokenizer.decode([token], skip_special_tokens=False)
        return texts[token]

    for call in calls:
        ids = call.get("input_ids", [])
        labels = _find_rows("labels", call, ids) or _find_rows("learned", call, ids)
        masks = _find_rows("attention_mask", call, ids)
        for number, tokens in enumerate(ids if labels else ()):
            row = Row(tokens, labels[number], _join_bytes(tokens, [decode(token) for token in tokens], tokenizer))
            row.unclear = {place for place, label in enumerate(row.labels) if label == UNCLEAR}
            row.labels = [IGNORED if label == UNCLEAR else label for label in row.labels]
            mask = masks[number] if masks else [1] * len(tokens)
            row.roles = ["unknown" if is_seen else "padding" for is_seen in mask]
            yield row


def _join_bytes(tokens: Sequence[int], texts: list[str], tokenizer: Any) -> list[str]:
    """Return the texts of tokens; letters whose bytes are several tokens are the first one's text."""
    for place, text in enumerate(texts):
        for stop in range(place + 2, min(place + MAX_BYTES, len(texts)) + 1) if REPLACEMENT in text else ():
            joined = tokenizer.decode(tokens[place:stop], skip_special_tokens=False)
            if REPLACEMENT not in joined:
                texts[place:stop] = [joined, *[""] * (stop - place - 1)]
                break
    return texts


def _find_rows(name: str, inputs: Mapping[str, Any], ids: list[list[int]]) -> list[list[int]]:
    """Return an input with a number for each token, [] if there is none of this name."""
    rows: list[list[int]] = inputs.get(name, [])
    return rows if [len(row) for row in rows] == [len(tokens) for tokens in ids] else []


class TurnFinder:
    """Finds the turns of conversations in rows by their text without blanks."""

    knows_all = True  # whether text that belongs to no turn is the chat template's

    def __init__(self, folder: Path) -> None:
        """Read the conversations of a rehearsal's folder."""
        from attncheck.rehearsal.worker.conversations import read_conversations

        self.turns: list[tuple[int, Role, str]] = []
        roles: dict[str, Role] = {role: role for role in get_args(Role)}
        for number, conversation in enumerate(read_conversations(folder)):
            for role, text in conversation:
                self.turns.append((number, roles[role], strip_blanks(text)))
        self.texts = tuple(text for *_, text in self.turns)

    def find(self, row: Row) -> Iterator[tuple[int, int, int, Role]]:
        """Yield (conversation, first token, last token + 1, role) of each turn in a row, in order.

        A turn that is cut at the start or the end of the row is included, unless a whole one is there, which may begin
        or end like another.
        """
        text, starts, at, last = spell_row(row)
        spans = []
        for turn_number, (conversation, role, turn) in enumerate(self.turns):
            place = text.find(turn)
            rest = text.rfind(turn[:BEGINNING])
            if place < 0 <= rest and turn.startswith(text[rest:]) and not text.endswith(self.texts):
                place, row.is_cut = rest, True
            while place >= 0 and place not in at:
                place = text.find(turn, place + 1)
            length = len(turn)
            if place < 0 and (length := _measure_rest(text, turn)) and not text.startswith(self.texts):
                place, row.begins_inside = 0, True
            if place >= 0 and place in at:
                stop = next((number for number, start in enumerate(starts) if start >= place + length), last)
                spans.append((conversation, at[place], stop, role))
                row.present.add(turn_number)
        spoken = [span for span in spans if span[3] != "system"]  # Mistral's stands before the last question
        row.unordered = sum(first[0] == next_[0] and first[1] > next_[1] for first, next_ in itertools.pairwise(spoken))
        kept = {
            conversation: [n for n in row.present if self.turns[n][0] == conversation] for conversation, *_ in spans
        }
        row.absent = {
            number
            for number, (conversation, role, turn) in enumerate(self.turns)
            if conversation in kept and role in ("user", "assistant") and turn not in text and number not in row.present
            # Text before the first turn and after the last may have been truncated before rows were packed.
            if min(kept[conversation]) < number < max(kept[conversation])
            or (len(kept) == 1 and number > min(kept[conversation]) - (role == "user" and not row.begins_inside) - 1)
        }
        row.dropped = {
            number
            for number, (_, role, turn) in enumerate(self.turns)
            if role == "system" and number + 1 in row.present and turn[:BEGINNING] not in text
        }
        for numbers in kept.values():
            times = {number: text.count(self.turns[number][2]) for number in numbers}
            answers = {number for number in numbers if self.turns[number][1] in ANSWERS}
            questions = {number for number in numbers if self.turns[number][1] == "user"}
            for some, others in ((answers, questions), (questions, answers)):
                most = max((times[number] for number in others), default=1)
                row.doubled.update(self.turns[number][1] for number in some if times[number] > max(most, 1))
        yield from sorted(spans, key=lambda span: span[1])

    def hide_unknown(self, row: Row) -> None:
        """Do nothing: every turn of a row is known."""


def spell_row(row: Row) -> tuple[str, list[int], dict[int, int], int]:
    """Return a row's text without blanks, where each token starts in it, the tokens by their start, and their end."""
    hidden = [role == "padding" for role in row.roles] or [False] * len(row.texts)
    pieces = ["" if is_hidden else strip_blanks(text) for text, is_hidden in zip(row.texts, hidden, strict=True)]
    starts = [0, *itertools.accumulate(map(len, pieces))][:-1]
    last = max((number + 1 for number, piece in enumerate(pieces) if piece), default=0)
    at = {start: number for number, start in enumerate(starts) if pieces[number]}
    return "".join(pieces), starts, at, last


def _measure_rest(text: str, turn: str) -> int:
    """Return the length of the end of a turn with which a row's text begins, 0 if it does not."""
    return next((length for length in range(len(turn) - 1, BEGINNING, -1) if text.startswith(turn[-length:])), 0)


def strip_blanks(text: str) -> str:
    """Return a text without white space."""
    return "".join(text.split())


def assign_roles(row: Row, finder: TurnFinder, tokenizer: Any, placeholders: Collection[int] = ()) -> None:
    """Give each token of a row its role, and record its turns and the starts of later documents.

    `placeholders` are the tokens that features of images replace.
    """
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    row.turns = list(finder.find(row))
    for _, start, stop, role in row.turns:
        row.roles[start:stop] = [role] * (stop - start)
    for number, (conversation, _, stop, role) in enumerate(row.turns):
        following = row.turns[number + 1] if number + 1 < len(row.turns) else None
        limit = following[1] if following is not None else len(row.tokens)
        # Markup closes a call within its turn, and text may precede the EOS token.
        near = special if role != "call" else set()
        end = next(
            (
                place
                for place in range(stop, limit)
                if row.tokens[place] == tokenizer.eos_token_id or (place < stop + 3 and row.tokens[place] in near)
            ),
            None,
        )
        if end is not None and role in ANSWERS:
            repeats = itertools.groupby(row.tokens[end:limit])
            row.again += range(end + 1, end + len(list(next(repeats)[1])))
        if end is not None and row.roles[end] == "unknown":
            closing: Role = (
                "template" if role == "thinking" and following is not None and following[0] == conversation else "end"
            )
            row.roles[end] = closing if role in ANSWERS else "other_end"
        if role in ANSWERS and tokenizer.eos_token_id not in row.tokens[stop:limit]:
            _settle_ending(row, range(stop, min(limit + 1, len(row.tokens))), tokenizer.eos_token_id)
        if following is not None and following[0] != conversation:
            row.starts.add(_find_start(row, (end if end is not None else stop - 1) + 1, following[1], tokenizer))
    _fill_template(row, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    if row.labels[0] != row.tokens[0]:
        row.labels[0] = IGNORED  # it is not used: nothing precedes the first token
    for place, token in enumerate(row.tokens):
        if token in placeholders:
            row.roles[place] = "picture"


def _settle_ending(row: Row, places: Sequence[int], ending: int | None) -> None:
    """Move the label of an answer's end from the next turn's first token to the EOS token, if there is one.

    LLaMA-Factory's templates with `efficient_eos` have the end predicted where another turn begins (0.9.5
    data/processor/supervised.py).
    """
    for place in places:
        if row.labels[place] == ending:
            row.labels[place] = row.tokens[place] if row.roles[place] == "end" else IGNORED


def _find_start(row: Row, place: int, limit: int, tokenizer: Any) -> int:
    """Return the start of a packed document: after the EOS tokens and line breaks of the previous one."""
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    while place < limit and (row.tokens[place] in ends or not row.texts[place].strip()):
        place += 1
    return place


def _fill_template(row: Row, padding: int | None, ending: int | None, beginning: int | None) -> None:
    """Set the role of tokens outside turns: padding at the row's ends, BOS, otherwise the chat template.

    One EOS token after text is the template's, also if rows are padded with it: OpenRLHF 0.11.2
    datasets/sft_dataset.py ends each row so.
    """
    last = max((number for number, role in enumerate(row.roles) if role not in ("unknown", "padding")), default=-1)
    for number, role in enumerate(row.roles):
        if role != "unknown":
            continue
        is_single = padding == ending and number and row.tokens[number - 1] != padding
        if row.tokens[number] == padding and number > last and not is_single:
            row.roles[number] = "padding"
        elif row.tokens[number] == beginning:
            row.roles[number] = "beginning"
        else:
            row.roles[number] = "template" if row.turns else "unknown"


def span_row(row: Row, tokenizer: Any) -> list[Span]:
    """Return the shown part of a row as spans of one role and one state."""
    states = list(zip(row.roles, row.learned, strict=True))[:MAX_SHOWN]
    spans, start = [], 0
    for (role, learned), group in itertools.groupby(states):
        count = len(list(group))
        text = tokenizer.decode(row.tokens[start : start + count], skip_special_tokens=False)
        spans.append(Span(text, role, learned, count))
        start += count
    return spans


def count_roles(rows: Sequence[Row]) -> list[RoleCount]:
    """Return the number of tokens of each role, and how many are learned."""
    tokens: Counter[Role] = Counter(role for row in rows for role in row.roles)
    learned: Counter[Role] = Counter(
        role for row in rows for role, is_learned in zip(row.roles, row.learned, strict=True) if is_learned
    )
    return [RoleCount(role, tokens[role], learned[role]) for role in ROLE_TEXTS if tokens[role]]


def _find_unclear(rows: Sequence[Row], targets: Targets) -> str:
    """Return why labels are not known, "" if they are: nobody knows whether tokens that must be learned are."""
    required = (*REQUIRED.get(targets, ANSWERS), "end")
    unclear = Counter(row.roles[place] in required for row in rows for place in row.unclear)
    if not unclear[True] and (not unclear or any(any(row.learned) for row in rows)):
        return ""
    return (
        f"{unclear.total()} predictions have gradients that are not those of a cross entropy with the row's tokens (as "
        f"if an entropy, a divergence or another model's answer were learned), {unclear[True]} of them of tokens that "
        f"must be learned: whether they are is not known"
    )


def judge_rows(
    rows: Sequence[Row],
    tokenizer: Any,
    targets: Targets,
    renders_system: bool = False,
    prompt: str | None = None,
    knows_all: bool = True,
) -> tuple[list[str], list[str]]:
    """Return the labels' faults for a launch that should learn `targets`, and possibly intended effects.

    `renders_system`: the chat template writes system turns, and the framework uses it. `prompt` is what the chat
    template of the launch's tokenizer writes after a question at inference, None if it is not known. `knows_all`: text
    that belongs to no turn is the chat template's.
    """
    counts = {count.role: count for count in count_roles(rows)}
    if not sum(count.learned for count in counts.values()):
        return ["nothing is learned: every label is -100"], []
    problems = list(_find_shifted(rows))
    # Roles are judged by the intended labels, so that misplaced ones are not reported twice.
    if shift := _find_shift(rows):
        rows = [replace(row, labels=_move(row.labels, shift)) for row in rows]
    if offset := _find_moved_mask(rows):
        problems.append(MOVED[offset])
        rows = [_move_mask(row, offset) for row in rows]
    counts = {count.role: count for count in count_roles(rows)}
    problems += [*_find_beginnings(rows, counts, tokenizer, targets), *_find_padding(counts)]
    notes: list[str] = []
    # TRL's collator of images documents that every token is learned, including placeholders.
    (problems if targets in ("assistant", "last") else notes).extend(_find_pictures(counts))
    problems += _find_absent(rows) if targets not in FREE else ()
    present = {number for row in rows for number in row.present}
    if dropped := {number for row in rows for number in row.dropped} - present:
        line = f"{len(dropped)} system turns of the data are not in the rows"
        (problems if renders_system and targets not in FREE else notes).append(line)
    unusual = [*_find_again(rows, tokenizer), *_find_unlearned(rows, counts, targets)]
    (notes if targets in FREE else problems).extend(unusual)
    # Labels of other tokens, or of padding, explain cut turns.
    problems += _find_cut_turns(rows) if targets == "labelled" and not problems else ()
    if targets in ("assistant", "last"):
        problems += [*_find_given(counts), *(_find_learned_markup(rows, prompt) if knows_all else ())]
        notes += _note_markup(rows, counts)
    cut = sum(row.is_cut for row in rows)
    if cut < len(rows):
        problems += _find_ends(rows, counts, tokenizer)
    problems += _find_first_of_packed(rows)
    notes += _note_thoughts(rows)
    if unclear := sum(len(row.unclear) for row in rows):
        notes.append(f"{unclear} other tokens have gradients but are not targets, as a term added to the loss has them")
    if inside := sum(row.begins_inside for row in rows):
        notes.append(f"{inside} of {len(rows)} rows begin inside a turn")
    if cut:
        notes.append(f"{cut} of {len(rows)} rows end inside a turn, truncated to the maximum length")
    empty = sum(1 for row in rows if row.turns and not any(row.learned))
    if empty:
        notes.append(f"{empty} of {len(rows)} rows have no learned token (truncated before the answer?)")
    return problems, notes


def _find_shift(rows: Sequence[Row]) -> int:
    """Return the offset of labels from their tokens: 1, -1, or 0 if labels are not shifted."""
    places = [(row, place) for row in rows for place, label in enumerate(row.labels) if label != IGNORED]
    same = sum(row.labels[place] == row.tokens[place] for row, place in places)
    for shift in SHIFTS if same < len(places) else ():
        shifted = sum(
            0 <= place + shift < len(row.tokens) and row.labels[place] == row.tokens[place + shift]
            for row, place in places
        )
        if shifted > max(same, 0.9 * len(places)):
            return shift
    return 0


def _move(labels: Sequence[int], shift: int) -> list[int]:
    """Return labels at the positions of their tokens."""
    return [IGNORED, *labels[:-1]] if shift > 0 else [*labels[1:], IGNORED]


def _find_shifted(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line if labels differ from the tokens at their positions."""
    places = [(row, place) for row in rows for place, label in enumerate(row.labels) if label != IGNORED]
    same = sum(row.labels[place] == row.tokens[place] for row, place in places)
    if same == len(places):
        return
    if shift := _find_shift(rows):
        yield f"labels are off by one: the label of a token is {SHIFTS[shift]}, and the model shifts labels again"
        return
    yield f"{len(places) - same} of {len(places)} labels differ from the token at their position"


def _find_beginnings(
    rows: Sequence[Row], counts: dict[Role, RoleCount], tokenizer: Any, targets: Targets
) -> Iterator[str]:
    """Yield a line if rows begin with two BOS tokens, or if BOS is learned though only answers should be."""
    beginning = tokenizer.bos_token_id
    if beginning is None:
        return
    doubled = sum(
        any(first == second == beginning for first, second in zip(row.tokens, row.tokens[1:])) for row in rows
    )
    count = counts.get("beginning")
    if targets in ("assistant", "last") and count is not None and count.learned:
        yield f"BOS is learned: {count.learned} of {count.tokens} have a label"
    if beginning in (tokenizer.eos_token_id, tokenizer.pad_token_id):
        return
    if doubled:
        yield f"{doubled} of {len(rows)} rows contain two consecutive BOS tokens"
    preceding = Counter(
        row.roles[start - 1] for row in rows for _, start, _, role in row.turns if role in ANSWERS and start > 1
    )
    if (
        preceding["beginning"] and 2 * preceding["beginning"] >= preceding.total()
    ):  # a template with BOS before a header may be cut between them
        yield f"{preceding['beginning']} answers begin with BOS: they were tokenized separately from their prompts"


def _find_absent(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line if turns of conversations are not in the rows, or follow another conversation's prompt.

    The end of a row that is cut, or as long as the longest, may be cut off.
    """
    lengths = [sum(role != "padding" for role in row.roles) for row in rows]
    whole = [row for row, length in zip(rows, lengths, strict=True) if length < max(lengths) and not row.is_cut]
    present = set().union(*(row.present for row in rows))
    if absent := set().union(*(row.absent for row in whole)) - present:
        total = len(present | absent)
        yield f"{len(absent)} of {total} turns are not in the rows as the data has them: they are dropped or changed"
    for role, count in sum((row.doubled for row in rows), Counter[Role]()).items():
        other = "question" if role in ANSWERS else "answer"
        yield f"{count} {ROLE_TEXTS[role]} turns are in their row twice, with one {other}"
    if unordered := sum(row.unordered for row in rows):
        yield f"{unordered} turns precede an earlier turn of their conversation"
    if len(rows) > 2 and all(row.tokens == rows[0].tokens for row in rows):
        yield f"all {len(rows)} rows are the same"
    pairs = [pair for row in rows for pair in itertools.pairwise(row.turns)]
    if alien := sum(first[3] == "user" and second[3] in ANSWERS and first[0] != second[0] for first, second in pairs):
        yield f"{alien} answers follow another conversation's prompt"


def _find_padding(counts: dict[Role, RoleCount]) -> Iterator[str]:
    """Yield a line if padding is learned."""
    padding = counts.get("padding")
    if padding is not None and padding.learned:
        yield f"padding is learned: {padding.learned} of {padding.tokens} padding tokens have a label"


def _find_pictures(counts: dict[Role, RoleCount]) -> Iterator[str]:
    """Yield a line if the placeholders of images are learned."""
    picture = counts.get("picture")
    if picture is not None and picture.learned:
        yield (f"image placeholder tokens are learned: {picture.learned} of {picture.tokens} have a label")


def _find_unlearned(rows: Sequence[Row], counts: dict[Role, RoleCount], targets: Targets) -> Iterator[str]:
    """Yield the turns that should be learned but are not. The result of a tool call is before the last answer."""
    for role in REQUIRED.get(targets, ANSWERS):
        count = counts.get(role)
        if count is None or count.learned == count.tokens:
            continue
        # The first token of a document has no earlier token that could predict it.
        missing = sum(
            row.roles[place] == role and not is_learned and place > 0 and place not in row.starts
            for row in rows
            for place, is_learned in enumerate(row.learned)
        )
        if not count.learned:
            yield f"no token of the {ROLE_TEXTS[role]} turns is learned"
        elif role in ANSWERS and all(is_last == is_learned for is_last, is_learned in _iter_answers(rows, role)):
            if targets != "last":
                yield f"only the last {ROLE_TEXTS[role]} turn of a conversation is learned"
        elif missing:
            places = ", ".join(f"{turns} turns {place}" for place, turns in _count_unlearned(rows, role).most_common())
            yield f"{missing} of {count.tokens} tokens of {ROLE_TEXTS[role]} turns are not learned: {places}"
    if targets == "last" and any(is_learned > is_last for is_last, is_learned in _iter_answers(rows, "assistant")):
        yield "assistant turns before the last of a conversation are learned"


def _count_unlearned(rows: Sequence[Row], role: Role) -> Counter[str]:
    """Return the number of a role's turns with tokens that are not learned, by their place: "entirely", "at the end".

    The first token of a document is left out, and so are turns of which it is not known.
    """
    places: Counter[str] = Counter()
    for row in rows:
        for _, start, stop, kind in row.turns:
            learned = row.learned[start + (not start or start in row.starts) : stop]
            if kind == role and not all(learned) and row.unclear.isdisjoint(range(start, stop)):
                edges = {(True, False): "at the end", (False, True): "at the start", (True, True): "in the middle"}
                places[edges.get((learned[0], learned[-1]), "in part") if any(learned) else "entirely"] += 1
    return places


def _find_cut_turns(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line if a mask begins or ends inside given turns, as if their tokens were counted in another row."""
    for role in GIVEN:
        if cut := (places := _count_unlearned(rows, role))["at the start"] + places["at the end"]:
            yield f"{cut} {ROLE_TEXTS[role]} turns are learned in part: the mask begins or ends inside them"


def _find_again(rows: Sequence[Row], tokenizer: Any) -> Iterator[str]:
    """Yield a line if answers end more than once, and one if the start of another answer follows the last turn."""
    if repeated := sum(row.learned[place] for row in rows for place in row.again):
        yield f"{repeated} end tokens that follow the end of an answer are learned: they repeat it, or are padding"
    headed = 0
    for row in rows:
        places = range(row.turns[-1][2] if row.turns else 0, len(row.tokens))
        behind = _join_markup(row, [place for place in places if row.learned[place]], tokenizer)
        headed += any(head and head in behind for head in _iter_heads(row, tokenizer))
    if headed:
        yield f"{headed} rows end with the chat template's start of another answer, and it is learned"


def _iter_heads(row: Row, tokenizer: Any) -> Iterator[str]:
    """Yield the text of the chat template before each answer."""
    for _, start, _, role in row.turns:
        if role in ANSWERS:
            markup = itertools.takewhile(lambda place: row.roles[place] == "template", range(start - 1, -1, -1))
            yield _join_markup(row, [*markup][::-1], tokenizer)


def _join_markup(row: Row, places: Sequence[int], tokenizer: Any) -> str:
    """Return the text of tokens of the chat template, without blanks and end tokens."""
    return strip_blanks("".join(row.texts[n] for n in places if row.tokens[n] != tokenizer.eos_token_id))


def _find_moved_mask(rows: Sequence[Row]) -> int:
    """Return the offset of the mask if each answer's learned part begins and ends one token early (-1) or late (1)."""
    early = late = answers = 0
    for row in rows:
        learned = [False, False, *row.learned, False]
        for place, role in enumerate(row.roles):
            if role != "end":
                continue
            start = place
            while start and row.roles[start - 1] in ANSWERS:
                start -= 1
            if start == place:
                continue
            answers += 1
            header, before, first, second = learned[start : start + 4]
            end, after = learned[place + 2 : place + 4]
            early += before and first and not (header or end)
            late += (after or place + 1 == len(row.tokens)) and end and second and not first
    return (answers == late) - (answers == early) if answers else 0


def _move_mask(row: Row, offset: int) -> Row:
    """Return a row whose labels are those of the neighbours that a mask with an offset learns instead of them."""
    pairs = zip(row.tokens, _move(row.labels, -offset), strict=True)
    return replace(row, labels=[IGNORED if label == IGNORED else token for token, label in pairs])


def _note_thoughts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line if answers are learned without the thoughts that precede them in the data."""
    answers = thoughts = 0
    for row in rows:
        for number, (conversation, start, stop, role) in enumerate(row.turns):
            if role == "assistant" and any(row.learned[start:stop]):
                answers += 1
                thoughts += bool(number) and row.turns[number - 1][::3] == (conversation, "thinking")
    if thoughts and answers > thoughts:
        yield f"{answers - thoughts} of {answers} answers are learned without their thoughts: the template drops these"


def _iter_answers(rows: Sequence[Row], role: Role) -> Iterator[tuple[bool, bool]]:
    """Yield, for each turn of a role, whether it is the last of its conversation, and whether any of it is learned."""
    for row in rows:
        last = {conversation: start for conversation, start, _, kind in row.turns if kind == role}
        for conversation, start, stop, kind in row.turns:
            if kind == role:
                yield start == last[conversation], any(row.learned[start:stop])


def _find_given(counts: dict[Role, RoleCount]) -> Iterator[str]:
    """Yield given turns that are learned although only answers should be."""
    for role in GIVEN:
        count = counts.get(role)
        if count is not None and count.learned:
            yield f"{ROLE_TEXTS[role]} turns are learned: {count.learned} of {count.tokens} tokens"


def _find_learned_markup(rows: Sequence[Row], prompt: str | None) -> Iterator[str]:
    """Yield a line if the header of answers is learned, if they have it twice, and if other turns' text is learned.

    A header that prompts do not end with must be learned: LLaMA-Factory 0.9.5 data/template.py:920 (`ernie_vl`).
    """
    apart = heads = headed = twice = own = 0
    for row in rows:
        is_apart = False
        for before, after in itertools.pairwise([None, *row.turns, None]):
            places = range(before[2] if before else 0, after[1] if after else len(row.tokens))
            markup = [place for place in places if row.roles[place] == "template"]
            learned, given = (
                strip_blanks("".join(row.texts[place] for place in markup if row.learned[place] == is_learned))
                for is_learned in (True, False)
            )
            if before and before[3] in ANSWERS:  # gpt-oss writes a header before each part of its answer
                own += bool(after and after[0] == before[0] and after[3] in ANSWERS and ROLE_NAME.search(learned))
                continue
            if not after or after[3] not in ANSWERS:
                is_apart |= bool(learned)
                continue
            heads += 1
            headed += bool(ROLE_NAME.search(learned) and not ROLE_NAME.search(given))
            twice += bool(TWICE.search(strip_blanks("".join(row.texts[place] for place in markup))))
        apart += is_apart
    is_given = prompt is None or ROLE_NAME.search(prompt)
    if 2 * headed > heads and not own and is_given:
        yield f"the chat template's header of {headed} of {heads} answers is learned: prompts contain it"
    if 2 * twice > heads:
        yield f"{twice} answers have their header twice: the chat template was applied to text that has it already"
    if 2 * apart > len(rows):  # a packed row may begin inside the end of an answer
        yield f"text of the chat template before or after other turns is learned in {apart} of {len(rows)} rows"


def _note_markup(rows: Sequence[Row], counts: dict[Role, RoleCount]) -> Iterator[str]:
    """Yield a line with the learned text of the chat template, and one with the learned ends of given turns."""
    texts: Counter[str] = Counter()
    for row in rows:
        states = zip(row.roles, row.learned, row.texts, strict=True)
        for is_learned_markup, group in itertools.groupby(states, lambda state: state[:2] == ("template", True)):
            texts["".join(text for *_, text in group)] += is_learned_markup
    if total := sum(texts.values()):
        text, times = texts.most_common(1)[0]
        markup, shown = counts["template"], f"{text[:MAX_MARKUP]!r} in {times} of {total} places"
        yield f"{markup.learned} of {markup.tokens} tokens of the chat template are learned: {shown}"
    ends = counts.get("other_end")
    if ends is not None and ends.learned:
        yield f"{ends.learned} of {ends.tokens} special tokens after other turns are learned"


def _find_ends(rows: Sequence[Row], counts: dict[Role, RoleCount], tokenizer: Any) -> Iterator[str]:
    """Yield a line if answers are learned without the token that ends them."""
    answers, ends = counts.get("assistant"), counts.get("end")
    if answers is None or not answers.learned:
        return
    if ends is None:
        yield "no token ends an assistant turn, so the model does not learn to stop"
    elif not ends.learned:
        same = " (the padding token is the EOS token)" if tokenizer.pad_token_id == tokenizer.eos_token_id else ""
        yield f"the token that ends an assistant turn is never learned, so the model does not learn to stop{same}"
    else:  # axolotl's `train_on_eos: last` leaves out all but a row's last
        last = [max((place for place, role in enumerate(row.roles) if role == "end"), default=0) for row in rows]
        missing = sum(
            row.roles[place] == "end"
            and row.roles[place - 1] in ANSWERS
            and row.learned[place - 1] > row.learned[place]
            for row, place in zip(rows, last, strict=True)
        )
        if missing:
            yield f"the end of {missing} of {len(rows)} rows' last answers is not learned"


def _find_first_of_packed(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line if the first token of a packed document is learned, which the previous document predicts."""
    starts = [(row, place) for row in rows for place in row.starts if place < len(row.tokens)]
    wrong = sum(row.labels[place] != IGNORED for row, place in starts)
    if wrong:
        yield (
            f"the first token of {wrong} of {len(starts)} packed documents is learned, predicted from the end of the "
            f"previous document"
        )
