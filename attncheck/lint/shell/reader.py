"""Parses bash's grammar: where commands, keywords, arrays and here-documents begin and end; expands nothing."""

import re

from attncheck.lint.shell import extents
from attncheck.lint.shell.conditions import AndOrList, Branches
from attncheck.lint.shell.grammar import (
    ASSIGNMENT,
    BRANCH_KEYWORDS,
    CLOSING_KEYWORDS,
    EMPTY_PARENTHESES,
    FUNCTION,
    FUNCTION_BODY,
    FUNCTION_NAME,
    KEYWORDS,
    OPENING_KEYWORDS,
    OUTPUT_OPERATORS,
    REDIRECTION,
    SEPARATOR,
    TEST_END,
    CompoundCommand,
    SimpleCommand,
)
from attncheck.lint.shell.text import ScriptText, Segments


class ShellParser:
    """Parses one text from beginning to end; a subclass defines what its commands do."""

    def __init__(self, text: ScriptText) -> None:
        self.text, self.raw, self.limit = text, text.string, len(text.string)
        self.open_compounds: list[CompoundCommand] = []  # outermost first, including those of the enclosing text
        self.inherited_count = 0  # how many of them the enclosing text opened
        self.next_heredoc_body = -1  # where the next heredoc of this line begins
        self.command = SimpleCommand()
        self.and_or_list = AndOrList()
        self.in_case_pattern = False  # between `in` or `;;` and `)` of a case

    def handle_command(self, command: SimpleCommand) -> None:
        """Process a complete simple command."""
        raise NotImplementedError

    def expand_stdin(self, start: int, end: int, is_quoted: bool, is_heredoc: bool) -> Segments:
        """Return the standard input from the here-document or here-string (`<<<`) between `start` and `end`."""
        raise NotImplementedError

    def expand_case_word(self, start: int, end: int) -> str | None:
        """Return the word that a `case` compares; None if it is known only at run time."""
        return None

    def enter_function(self, function: CompoundCommand) -> None:
        """Process the beginning of a function's body."""

    def leave_compound(self, compound: CompoundCommand, offset: int) -> None:
        """Process the end of a compound command."""

    def add_note(self, offset: int, text: str) -> None:
        """Record a part at `offset` that could not be read."""

    def refuse(self, offset: int, text: str) -> None:
        """Record a syntax error at `offset`: bash runs the commands before it, and none after it."""

    def count_step(self) -> bool:
        """Count one step of the parser; return whether to continue."""
        return True

    def parse(self, start: int = 0, end: int | None = None) -> None:
        """Parse the text, or the part of it from `start` to `end`."""
        self.limit = len(self.raw) if end is None else end
        offset = start
        while offset < self.limit:
            if not self.count_step():
                break
            offset = self.parse_next(offset)
        self.finish_command()
        for compound in self.own_compounds()[:1]:
            self.refuse(compound.offset, f"`{compound.keyword}` is never closed")

    def own_compounds(self) -> list[CompoundCommand]:
        """Return the compound commands that this text opened."""
        return self.open_compounds[self.inherited_count :]

    def finish_command(self) -> None:
        """Pass the simple command that is being read to `handle_command`, and begin another."""
        command, self.command = self.command, SimpleCommand()
        if command.words:
            self.handle_command(command)

    def parse_next(self, offset: int) -> int:
        """Parse one token at `offset` and return where the next begins."""
        raw = self.raw
        blank = extents.BLANK.match(raw, offset, self.limit)
        if blank:
            return blank.end()
        if raw[offset] == "#":
            newline = raw.find("\n", offset, self.limit)
            return newline if newline >= 0 else self.limit
        if self.in_case_pattern:
            return self._parse_case_pattern(offset)
        if raw.startswith("((", offset) and self._starts_arithmetic():
            return extents.find_word_end(raw, offset + 1, self.limit, "(")[0]
        if raw.startswith("<<", offset) and not raw.startswith("<<<", offset):
            heredoc_end = self._parse_heredoc(offset)
            if heredoc_end:
                return heredoc_end
        is_word = raw.startswith(("<(", ">("), offset) or extents.PLACEHOLDER.match(raw, offset, self.limit)
        if not is_word:
            redirection = REDIRECTION.match(raw, offset, self.limit)
            if redirection:
                return self._parse_redirection(redirection)
        separator = SEPARATOR.match(raw, offset, self.limit)
        if separator:
            return self._parse_separator(separator[0], separator.end())
        if raw[offset] in "()":
            return self._parse_parenthesis(offset)
        return self._parse_word(offset)

    def _starts_arithmetic(self) -> bool:
        """Return whether `((` begins arithmetic here: as a command, or after `for`."""
        words = self.command.words
        return not words or (len(words) == 1 and self.raw[slice(*words[0])] == "for")

    def _parse_separator(self, separator: str, end: int) -> int:
        self.finish_command()
        self.and_or_list.pass_separator(separator)
        if separator == "\n" and self.next_heredoc_body >= 0:
            end, self.next_heredoc_body = max(self.next_heredoc_body, end), -1
        if separator.startswith(";;") or separator == ";&":
            cases = [compound for compound in self.own_compounds() if compound.keyword == "case"]
            self.in_case_pattern = bool(cases)
            if cases and cases[-1].branches is not None:
                cases[-1].branches.leave_pattern(separator)
        return end

    def _parse_case_pattern(self, offset: int) -> int:
        """Read one word of a case's pattern, or its `esac`."""
        branches = self.own_compounds()[-1].branches if self.own_compounds() else None
        if self.raw[offset] == ")":
            self.in_case_pattern = False
            if branches is not None:
                branches.enter_pattern()
            return offset + 1
        end, _ = extents.find_word_end(self.raw, offset, self.limit)
        if self.raw[offset:end] == "esac":
            self.in_case_pattern = False
            self._close_compound(end)
        elif end > offset and branches is not None:
            branches.patterns.append(self.raw[offset:end])
        return max(end, offset + 1)

    def _parse_redirection(self, operator: re.Match[str]) -> int:
        blank = extents.BLANK.match(self.raw, operator.end(), self.limit)
        offset = blank.end() if blank else operator.end()
        end, _ = extents.find_word_end(self.raw, offset, self.limit)
        if end <= offset and not self.raw.startswith(("<(", ">("), offset):
            start = self.command.words[0][0] if self.command.words else operator.start()
            self.refuse(start, f"no file after `{operator[0]}`")
        if operator[0] == "<<<":
            self.command.stdin = self.expand_stdin(offset, end, is_quoted=False, is_heredoc=False)
        elif operator[0] in OUTPUT_OPERATORS:
            self.command.output, self.command.appends = (offset, end), operator[0].endswith(">>")
        return max(end, offset)

    def _parse_heredoc(self, offset: int) -> int:
        heredoc = extents.find_heredoc(self.raw, offset, self.limit, self.next_heredoc_body)
        if heredoc is None:
            return 0
        if not heredoc.is_closed:
            self.add_note(offset, "the heredoc that begins here has no end")
        self.command.stdin = self.expand_stdin(heredoc.body_start, heredoc.body_end, heredoc.is_quoted, is_heredoc=True)
        self.command.stdin_start = heredoc.body_start
        self.next_heredoc_body = heredoc.next_line
        return heredoc.delimiter_end

    def _parse_parenthesis(self, offset: int) -> int:
        """Parse `(` or `)`: a subshell, or the `()` of a function."""
        words = self.command.words
        parentheses = EMPTY_PARENTHESES.match(self.raw, offset, self.limit)
        if parentheses and len(words) == 1 and not self.command.arrays:
            name = self.raw[slice(*words[0])]
            self.command = SimpleCommand()
            return self._begin_function(name, parentheses.end())
        self.finish_command()
        return offset + 1

    def _begin_function(self, name: str, offset: int) -> int:
        """Enter the body of a function, which is read here and again at each call."""
        body = FUNCTION_BODY.match(self.raw, offset, self.limit)
        if body is None:
            return offset
        self.open_compounds.append(CompoundCommand(FUNCTION, "{", body.end(), name))
        self.enter_function(self.open_compounds[-1])
        return body.end()

    def _parse_word(self, offset: int) -> int:
        """Parse one word, or a keyword at the start of a command."""
        end, is_closed = extents.find_word_end(self.raw, offset, self.limit)
        if not is_closed:
            self.add_note(offset, "a quote or a bracket that opens here is never closed")
            self.refuse(self.command.words[0][0] if self.command.words else offset, "a quote or a bracket stays open")
        raw = self.raw[offset:end]
        words = self.command.words
        if not words and raw in KEYWORDS:
            return self._parse_keyword(raw, offset, end)
        if words and raw == "in" and self.raw[slice(*words[0])] == "case":
            branches = self.own_compounds()[-1].branches if self.own_compounds() else None
            if len(words) == 2 and branches is not None:
                branches.subject = self.expand_case_word(*words[1])
            self.command, self.in_case_pattern = SimpleCommand(), True
            return end
        words.append((offset, end))
        if raw.endswith("=") and self.raw.startswith("(", end) and ASSIGNMENT.fullmatch(raw):
            return self._parse_array(len(words) - 1, end + 1)
        return max(end, offset + 1)

    def _parse_array(self, index: int, offset: int) -> int:
        """Parse the elements of `NAME=( … )`, with comments and newlines between them."""
        elements = self.command.arrays.setdefault(index, [])
        while offset < self.limit and self.raw[offset] != ")":
            if self.raw[offset].isspace() or self.raw.startswith("\\\n", offset):
                offset += 1 + (self.raw[offset] == "\\")
            elif self.raw[offset] == "#":
                newline = self.raw.find("\n", offset, self.limit)
                offset = newline if newline >= 0 else self.limit
            else:
                end, _ = extents.find_word_end(self.raw, offset, self.limit)
                if end > offset:
                    elements.append((offset, end))
                else:
                    self.refuse(self.command.words[0][0], f"`{self.raw[offset]}` in an array")
                offset = max(end, offset + 1)
        if offset >= self.limit:
            self.add_note(offset, "an array that is never closed")
            self.refuse(self.command.words[0][0], "an array is never closed")
        return offset + 1

    def _parse_keyword(self, keyword: str, start: int, end: int) -> int:
        if keyword == "[[":
            return self._parse_test(start, end)
        if keyword == "!":
            self.command.is_negated = not self.command.is_negated
        if keyword == "function":
            name = FUNCTION_NAME.match(self.raw, end, self.limit)
            return self._begin_function(name[1], name.end()) if name else end
        if keyword in CLOSING_KEYWORDS:
            own = self.own_compounds()
            if not own or own[-1].keyword not in CLOSING_KEYWORDS[keyword]:
                self.refuse(start, f"`{keyword}` closes nothing")
            self._close_compound(start)
        elif keyword in BRANCH_KEYWORDS:
            branches = self.own_compounds()[-1].branches if self.own_compounds() else None
            if branches is not None:
                branches.enter_branch(keyword)
        elif keyword in OPENING_KEYWORDS:
            self.open_compounds.append(
                CompoundCommand(OPENING_KEYWORDS[keyword], keyword, start, branches=_start_branches(keyword))
            )
            if keyword in ("for", "select", "case"):
                self.command.words.append((start, end))  # its words are processed at the end of the line
        return end

    def _parse_test(self, start: int, offset: int) -> int:
        """Parse `[[ … ]]`; only its first word is kept if it has more than one comparison."""
        closing = TEST_END.search(self.raw, offset, self.limit)
        end = closing.end() if closing else self.limit
        words = [(start, offset)]
        while offset < end:
            blank = re.compile(r"[\s\\]+").match(self.raw, offset, end)
            offset = blank.end() if blank else offset
            word_end, _ = extents.find_word_end(self.raw, offset, end)
            if word_end == offset:
                words = words[:1] if offset < end else words
                break
            words.append((offset, word_end))
            offset = word_end
        self.command.words = words
        return end

    def _close_compound(self, offset: int) -> None:
        if self.own_compounds():
            self.open_compounds[-1].end = offset
            self.leave_compound(self.open_compounds.pop(), offset)


def _start_branches(keyword: str) -> Branches | None:
    if keyword == "if":
        return Branches()
    return Branches(is_taken=None, in_condition=False) if keyword == "case" else None
