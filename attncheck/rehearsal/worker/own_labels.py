"""The tasks that make a stage of the user's rows, and read by role which of their tokens are learned.

A conversation is identified by a turn whose text no other one has. Its other turns must be next to it, with at most a
chat template's markup in between. What cannot be identified stays unknown, and is not judged.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attncheck.core.lists import group_values
from attncheck.core.results.labels import Role
from attncheck.rehearsal.worker import conversations, labels, own_turns
from attncheck.rehearsal.worker.labels import BEGINNING, Row, TurnFinder, spell_row, strip_blanks
from attncheck.rehearsal.worker.turns import FILE

MAX_MARKUP = 80  # letters of a chat template between turns, such as Llama 3's dates before a system turn


def prepare(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Handle a job of one item: fill `message["stage"]` with model/ and the first rows of `message["real_data"]`."""
    from attncheck.smoke.worker.models.architectures import Unbuildable

    (item,) = message["items"]
    send({"started": item})
    folder = Path(message["stage"])
    try:
        tokenizer, remarks = conversations.make_model(message, folder, message["tokenizer"])
        name, length, roles = message["real_data"], message["row_length"], message["roles"]
        _, remark, known = own_turns.lay_rows(name, folder, tokenizer, length, roles)
    except Unbuildable as error:
        send({"unanswered": str(error)})
        return
    send({"item": item, "answer": {"remarks": [*remarks, remark], **known}})


def judge(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Handle a job as `labels.judge` does, with turns of the user's rows."""
    labels.judge(message, send, OwnTurnFinder)


class OwnTurnFinder(TurnFinder):
    """Finds the turns of the user's rows; `knows_all` says whether every row can be identified."""

    def __init__(self, folder: Path) -> None:
        """Read the conversations of a rehearsal's folder."""
        super().__init__(folder)
        count = Counter(text for _, _, text in self.turns)
        self.conversations = group_values((number, (role, text)) for number, role, text in self.turns)
        self.keys = {text: number for number, _, text in self.turns if count[text] == 1 and len(text) > BEGINNING}
        listed = json.loads((folder / FILE).read_text())
        self.knows_all = {*self.keys.values()} == {*range(len(listed))}

    def find(self, row: Row) -> Iterator[tuple[int, int, int, Role]]:
        """Yield (conversation, first token, last token + 1, role) of each identified turn in a row, in order."""
        text, starts, at, last = spell_row(row)
        spans = []
        for number in sorted({number for key, number in self.keys.items() if key in text}):
            places = self._place(number, text)
            if all(start in at for _, start, _ in places):  # a token is part of one turn
                row.is_cut |= places[-1][2] == len(text) and not text.endswith(self.conversations[number][-1][1])
                for role, start, stop in places:
                    end = next((place for place, begin in enumerate(starts) if begin >= stop), last)
                    while end < last and not row.texts[end]:  # the rest of a letter's bytes
                        end += 1
                    spans.append((number, at[start], end, role))
        yield from sorted(spans, key=lambda span: span[1])

    def _place(self, number: int, text: str) -> list[tuple[Role, int, int]]:
        """Return (role, start, stop) of a conversation's turns in a text: one that only it has, and its neighbours."""
        turns = self.conversations[number]
        own = next(place for place, (_, turn) in enumerate(turns) if self.keys.get(turn) == number and turn in text)
        start = text.find(turns[own][1])
        stop = start + len(turns[own][1])
        places = [(turns[own][0], start, stop)]
        for role, turn in reversed(turns[:own]):
            place = text.rfind(turn, max(start - len(turn) - MAX_MARKUP, 0), start)
            if place < 0:  # a column that the launch does not read
                continue
            places.insert(0, (role, place, place + len(turn)))
            start = place
        for role, turn in turns[own + 1 :]:
            place = text.find(turn, stop, stop + MAX_MARKUP + len(turn))
            end = place + len(turn)
            if place < 0:  # truncated
                place, end = text.find(turn[:BEGINNING], stop, stop + MAX_MARKUP + BEGINNING), len(text)
                if place < 0 or not turn.startswith(text[place:]):
                    continue
            places.append((role, place, end))
            stop = end
        return places

    def hide_unknown(self, row: Row) -> None:
        """Set the role of stretches that are too long for a chat template to "unknown": other documents, or turns."""
        stretch: list[int] = []
        for place, role in enumerate([*row.roles, None]):
            if role == "template":
                stretch.append(place)
                continue
            if len(strip_blanks("".join(row.texts[place] for place in stretch))) > MAX_MARKUP:
                for hidden in stretch:
                    row.roles[hidden] = "unknown"
            stretch = []
