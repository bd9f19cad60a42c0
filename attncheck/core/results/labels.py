"""Which tokens a launch trains on, by role: the rows that entered its model, and their learned tokens."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attncheck.core.report import OpenQuestion, Section

# The role of a token: a turn's text, markup of the chat template, the start or end of a text or turn, or padding.
Role = Literal[
    "system",
    "user",
    "thinking",
    "assistant",
    "call",
    "tool",
    "picture",
    "template",
    "beginning",
    "end",
    "other_end",
    "padding",
    "unknown",
]
ROLE_TEXTS: dict[Role, str] = {
    "system": "system",
    "user": "user",
    "thinking": "assistant's thinking",
    "assistant": "assistant",
    "call": "assistant's tool call",
    "tool": "tool result",
    "picture": "picture's placeholder",
    "template": "chat template",
    "beginning": "BOS",
    "end": "end of an assistant turn",
    "other_end": "end of another turn",
    "padding": "padding",
    "unknown": "not identified",
}


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of a row with one role that are either all learned or all not learned."""

    text: str
    role: Role
    learned: bool
    tokens: int


@dataclass(frozen=True)
class RoleCount:
    """How many tokens of a role entered the model, and how many of them are learned."""

    role: Role
    tokens: int
    learned: int


@dataclass(frozen=True)
class LabelledLaunch:
    """A launch's first batches, by token: what it should learn (`targets`), and what it learns.

    `problems` are the differences. `reason` says why nothing could be judged, "" if the labels were read.
    """

    location: str  # "run.sh:3:1"
    framework: str
    version: str
    trainer: str
    targets: str
    tokenizer: str  # the model or folder that it belongs to; "" for a generated one
    rows: tuple[tuple[Span, ...], ...] = ()
    counts: tuple[RoleCount, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    total_rows: int = 0
    reason: str = ""


@dataclass(frozen=True)
class LabelsSection(Section):
    """What `attncheck labels` read."""

    name: ClassVar[str] = "labels"
    launches: tuple[LabelledLaunch, ...] = ()

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """The launches whose labels could not be read."""
        return tuple(
            OpenQuestion(self.name, "unanswered", f"{launch.location}: {launch.reason}")
            for launch in self.launches
            if launch.reason
        )


SECTION = LabelsSection
