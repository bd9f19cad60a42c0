"""Computes what a program passes on of its command's options: `bf16=args.bf16`, `"sdpa" if args.sdpa else "eager"`.

Options in the command count, and literal defaults of the dataclasses that the program's parser fills. Other parsers may
change a default.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from attncheck.core.launch import NOWHERE, Setting, Word
from attncheck.lint.programs.literals import evaluate

# names that programs give to what they parse
ARGUMENTS = re.compile(r"\w*(?:args|arguments|cfg|config|opts?|options|flags)")
COMPARED: dict[type[ast.cmpop], type] = {ast.Eq: str, ast.NotEq: str, ast.In: list, ast.NotIn: list}
AnySetting = TypeVar("AnySetting", bound=Setting)
TRUE_TEXTS, FALSE_TEXTS = frozenset({"", "true", "1", "yes", "y"}), frozenset({"false", "0", "no", "n"})


@dataclass(frozen=True)
class PassedOptions:
    """The options of a command, each with its text, "" for a switch, and how its program reads them."""

    texts: Mapping[str, str]
    parses_itself: bool = False  # by argparse, for which the text "False" is true unless its type says otherwise
    by_name: bool = False  # as parameters of a function: Fire(train)
    defaults: Mapping[str, str] = field(default_factory=dict)  # of fields that the command does not set
    aliases: Mapping[str, ast.expr] = field(default_factory=dict)  # names that the program binds once

    def decide(self, setting: AnySetting) -> AnySetting:
        """Return a setting of the program's text with the value that the options decide, if they do."""
        if setting.known:
            return setting
        try:
            expression = ast.parse(setting.value, mode="eval").body
        except (SyntaxError, ValueError):
            return setting
        while isinstance(expression, ast.IfExp):
            is_true = self.test(expression.test)
            if is_true is None:
                return setting
            expression = expression.body if is_true else expression.orelse
        value = self._read(expression)
        return setting if value is None else replace(setting, value=value, known=True, span=NOWHERE, value_span=NOWHERE)

    def test(self, test: ast.expr) -> bool | None:
        """Return whether a condition is true; None if the options do not decide it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            is_true = self.test(test.operand)
            return None if is_true is None else not is_true
        if isinstance(test, ast.BoolOp):
            answers = [self.test(item) for item in test.values]
            deciding = isinstance(test.op, ast.Or)  # one such answer is enough
            return deciding if deciding in answers else None if None in answers else not deciding
        if isinstance(test, ast.Compare):
            return self._compare(test)
        text = self._find(test)
        if text is None or (self.parses_itself and text.lower() in FALSE_TEXTS and not self._is_default(test)):
            return None
        return True if text.lower() in TRUE_TEXTS else False if text.lower() in (*FALSE_TEXTS, "null") else None

    def _compare(self, test: ast.Compare) -> bool | None:
        """Return whether an option has one of the texts in `args.stage == "sft"`, `args.stage in ("sft", "pt")`."""
        text, other, operator = self._find(test.left), evaluate(test.comparators[0], {}), type(test.ops[0])
        others = other if isinstance(other, list) else [other]
        is_known = text is not None and len(test.ops) == 1 and all(isinstance(item, str) for item in others)
        if not is_known or not isinstance(other, COMPARED.get(operator, ())):  # "a" in args.text is another question
            return None
        return (text in others) == (operator in (ast.Eq, ast.In))

    def _is_default(self, expression: ast.expr) -> bool:
        return replace(self, texts={})._find(expression) is not None

    def _read(self, expression: ast.expr) -> str | None:
        if isinstance(expression, ast.Constant):
            return "null" if expression.value is None else str(expression.value)
        if isinstance(expression, ast.Attribute) and ast.unparse(expression.value) == "torch":
            return expression.attr
        text = self._find(expression)
        return None if text is None else text or "True"

    def _find(self, expression: ast.expr) -> str | None:
        """Return the text of the option that an expression such as `args.bf16` reads; None if it reads none."""
        if isinstance(expression, ast.Name) and expression.id in self.aliases:
            return replace(self, aliases={})._find(self.aliases[expression.id])
        if isinstance(expression, ast.Call) and ast.unparse(expression.func) == "getattr" and len(expression.args) > 1:
            name = evaluate(expression.args[1], {})
            owner = expression.args[0]
            return self._find(ast.Attribute(owner, name)) if isinstance(name, str) else None
        if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            default = self.defaults.get(expression.attr) if ARGUMENTS.fullmatch(expression.value.id) else None
            return self.texts.get(expression.attr, default)
        return self.texts.get(expression.id) if self.by_name and isinstance(expression, ast.Name) else None


def list_names(words: Sequence[Word]) -> set[str]:
    """Return the names of the fields that a command's options set."""
    return {word.text[2:].partition("=")[0].replace("-", "_") for word in words if word.text[:2] == "--"}


def read_options(words: Sequence[Word]) -> dict[str, str]:
    """Return the options with known values by field, the last of each name; "" is the text of a switch."""
    texts: dict[str, str] = {}
    for word, following in zip(words, (*words[1:], None)):
        name, equals, text = word.text.partition("=")
        if name.startswith("--"):
            has_value = not equals and following is not None and not following.text.startswith("-")
            texts.pop(field := name[2:].replace("-", "_"), None)
            value = following if has_value and following is not None else word
            if value.known:
                texts[field] = value.text if has_value else text
            if field.startswith("no_") and not has_value and not equals:  # of a field that is true by default
                texts[field[3:]] = "False"
    return texts
