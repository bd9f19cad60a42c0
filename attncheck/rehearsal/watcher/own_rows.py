"""Reads the launch's own rows up to its batches, in a fork of its script: what they hold is learned, or is not.

The fork begins before the script reads its options, a tokenizer or rows. It reads the files that are there with the
launch's own lengths, and a tokenizer that knows their words. It ends at its first loader, or at its reward functions.
`own-rows.json` holds the answers, which have numbers and no texts.

Sources: trl 1.16.0 trainer/dpo_trainer.py and reward_trainer.py (`DataCollatorForPreference`: the chosen sides of a
batch, then the rejected ones), trainer/grpo_trainer.py (`_calculate_rewards` passes a row's columns by name).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import inspect
import itertools
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .absent import note
from .continuing import FORKED, leave_records, wait_for
from .modules import describe_code, is_foreign, unwrap
from .script_code import CODE, find_script_frame, name_line

MAX_ROWS = 500  # of each file or data set, spread over it
PARSER_FRAMES = 5  # of argparse's and transformers' parsers, between the script and the method
MAX_FOLDERS = 2000  # that are compared before and after the fork
MAX_BYTES = 4 << 20  # of a file that is opened whole
SECONDS, WAITING_SECONDS = 28, 75.0  # of a processor for all, and of the launch, whose machine may be busy
READING_SECONDS = 8.0  # for the batches
LEAST_ROWS = 8  # of which something is concluded
SAME_ROWS, SAME_PAIRS, SWAPPED, UNLABELLED = 0.1, 0.5, 0.8, 0.5  # shares of the rows
BY_CHANCE = 0.1  # share of texts of which other rows' texts have words
CLEAR = 4  # more tokens than a side shares with its own other side
TOKENIZER = "tokenizer.json"  # of the fork's model
WORD = re.compile(r"\w+")
WORDS = 3  # of a text in a row, that show that it is there
MAX_PROMPTS, MAX_REFERENCES, MAX_FORM = 8, 2, 400
# A block of tags in a prompt, "<think>\n...\n</think>", and what a tag holds.
SHOWN_FORM = re.compile(r"<(\w+)>(?s:.*)</\w+>")
CONTENT = re.compile(r"<(\w+)>([^<]*)</\1>")
UNREAD = "the contents of the launch's data are not known, because reading them ends"  # begins a note
ROW = r"(?:ex|examples?|row|r|x|s|d|e|sample|item|record|entry)"  # a row's name in a script
OF_CODE = (TypeError, NameError, ImportError)  # not of a completion
TRL_NAMES = ("prompt", "prompts", "completions", "completion_ids")  # parameters that are no column
NO_ANSWERS = ("", "no idea")
FORMS = (
    *("{}", "The answer is {}", "The answer is {}.", "Answer: {}", "#### {}", "\\boxed{{{}}}", "```\n{}\n```"),
    *("<think>because</think><answer>{}</answer>", "<think>\nbecause\n</think>\n<answer>\n{}\n</answer>"),
    *("<reasoning>\nbecause\n</reasoning>\n<answer>\n{}\n</answer>\n", '{{"answer": "{}"}}'),
)
ANSWER = re.compile(
    r"(?:\w+_)?(?:answer|output|response|completion|solution|summary|reply)(?:_text)?"
)  # a column's name
EVALUATIONS = ("evaluate", "evaluation_loop", "predict", "prediction_loop")
# A process of torchrun in a separate group, without the launcher's store.
ALONE = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1") | dict.fromkeys(
    ("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"
)
ALONE |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "False"}
# Settings that decide what a row becomes, which the fork leaves as the script has them.
OF_ROWS = ("max_length", "max_seq_length", "max_prompt_length", "max_completion_length", "chat_template_path")
OWN: list[dict[str, Any]] = []  # rows as they are read, in the fork
_ASKED: list[str] = []
_REACHED: list[str] = []
Row = tuple[tuple[int, ...], Any]  # its tokens without padding, and its labels


def begin() -> bool:
    """Start the fork if the launch's own rows are there, and return whether this process is the fork."""
    if OWN or _ASKED or "ATTNCHECK_OWN" not in os.environ or FORKED or os.environ.get("RANK", "0") != "0":
        return is_own()
    _ASKED.append("")
    folder = os.environ["ATTNCHECK_WATCH"]
    places = [os.path.join(os.environ.get("ATTNCHECK_FOLDER", folder), "output"), *_list_overlays()]
    before = _list_paths(places)
    process = os.fork()
    if process:
        wait_for(process, WAITING_SECONDS)
        for path in sorted(_list_paths(places) - before, reverse=True):  # such as a cache
            with contextlib.suppress(OSError):
                os.rmdir(path) if os.path.isdir(path) else os.remove(path)
        return False
    try:
        leave_records()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        OWN.append({"path": os.path.join(folder, "own-rows.json"), "rows": [], "names": [], "faults": []})
        os.environ["ATTNCHECK_WATCH"] = tempfile.mkdtemp()  # its notes are the launch's own
        os.environ.pop("ATTNCHECK_CONTINUES", None)
        if "RANK" in os.environ:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                os.environ |= ALONE | {"MASTER_PORT": str(free.getsockname()[1])}
        sys.argv[1:] = _restore(sys.argv[1:])
        rows = watch_calls(importlib.import_module("torch").nn.Module)
        sys.excepthook = lambda kind, error, trace: end(rows, error)
        atexit.register(end, rows)
    except BaseException:
        os._exit(1)
    return True


def _list_overlays() -> list[str]:
    """Return the working folder if it is in an overlay of the sandbox, which keeps what is written."""
    stage, folder = os.path.dirname(os.environ.get("ATTNCHECK_FOLDER", "")), os.getcwd()
    with contextlib.suppress(OSError), open("/proc/self/mounts") as stream:
        places = [line.split()[1] for line in stream if stage and f",upperdir={stage}/" in line]
        return [folder] if any(f"{folder}/".startswith(f"{place}/") for place in places) else []
    return []


def _list_paths(places: Sequence[str]) -> set[str]:
    """Return the files and folders in some places."""
    walks = itertools.islice((own for place in places for own in os.walk(place)), MAX_FOLDERS)
    return {os.path.join(folder, name) for folder, names, files in walks for name in (*names, *files)}


def is_own() -> bool:
    """Return whether this process is the fork that reads the launch's own rows."""
    return bool(OWN)


def end(rows: list[Row], error: BaseException | None = None) -> None:
    """End the fork at the end of its script, with what it finds in the batches that its model was called with.

    Without any, an error is a fault of the launch if it names a column that none of its rows has.
    """
    with contextlib.suppress(Exception):
        if rows or error is None:
            leave(judge(rows, []) if rows else None)
        held, frames = OWN[0]["rows"], traceback.extract_tb(error.__traceback__)
        place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
        name = error.args[0] if isinstance(error, KeyError) and error.args else None
        is_read = re.search(rf"\b{ROW}\[[\"']{re.escape(str(name))}[\"']\]", frames[-1].line or "")
        if is_read and held and not any(name in row for row in held):
            columns = ", ".join(dict.fromkeys(column for row in held for column in row))
            leave(
                {"violations": [f"{place} reads {name!r}, which no row of the launch's data has: they have {columns}"]}
            )
        leave({"notes": [f"{UNREAD}: {type(error).__name__} in {place}"]})
    os._exit(0)


def watch_calls(module: Any) -> list[Row]:
    """Return a list that gets the rows of each call of a model in training: a script may need no loader."""
    original, rows, running = module.__call__, list[Row](), list[None]()

    @functools.wraps(original)
    def call(model: Any, *arguments: Any, **options: Any) -> Any:
        if running or not (model.training and hasattr(model, "save_pretrained")):
            return original(model, *arguments, **options)
        running.append(None)
        parts = _name_parts(options or arguments)
        rows.extend(row for name in _list_tokens(parts)[:1] for row in _read_rows(parts, name))
        if len(rows) >= 2 * len(OWN[0]["rows"]) > 0:
            end(rows)
        try:
            return original(model, *arguments, **options)
        finally:
            running.clear()

    module.__call__ = call
    return rows


def leave(answers: Mapping[str, Sequence[str]] | None = None) -> NoReturn:
    """End the fork, with answers if it has any; without them the rows are as good as not there."""
    if answers is not None:
        with open(f"{OWN[0]['path']}.part", "w") as stream:
            json.dump(answers, stream)
        os.rename(f"{OWN[0]['path']}.part", OWN[0]["path"])
    os._exit(0)


def _restore(words: Sequence[str]) -> list[str]:
    """Return a script's options with those of the launch in place of the rehearsal's: "" if it has none."""
    own, kept = json.loads(os.environ["ATTNCHECK_OWN"]), list[str]()
    options, words = iter(words), list(words)
    for word in options:
        name, equals, _ = word.partition("=")
        value = own.get(name.lstrip("-").replace("-", "_")) if word.startswith("--") else None
        if value is None:
            kept.append(word)
            continue
        if not equals:
            next(options, None)
        kept += [name, value] * bool(value)
    return kept


def begin_parsing(parser: Any) -> None:
    """Start the fork before a script's parser reads the options."""
    original = parser.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        given, frame = sys.argv[1:], find_script_frame(sys._getframe(1), PARSER_FRAMES)  # not of a launcher
        if frame is not None and not is_own() and begin() and (args is None or list(args) == given):
            args = None
        return original(self, args, namespace)

    parser.parse_known_args = parse_known_args


def find_here(path: Any, find_nearby: Callable[[str], str]) -> Any:
    """Return the path of the launch's own data on this machine; a fork without them ends."""
    if isinstance(path, Mapping):
        return {name: find_here(own, find_nearby) for name, own in path.items()}
    if isinstance(path, (list, tuple)):
        return [find_here(own, find_nearby) for own in path]
    place = path if os.path.exists(path) or "*" in str(path) else find_nearby(str(path))
    if not place or _is_made(place):
        leave()
    OWN[0]["names"].append(os.path.basename(str(place)))
    return place


def _is_made(path: Any) -> bool:
    """Return whether the rehearsal made a path, which a configuration file may name."""
    stage = os.path.dirname(os.path.dirname(os.environ["ATTNCHECK_ROWS"]))
    return str(os.path.realpath(path)).startswith(os.path.realpath(stage) + os.sep)


def keep_made(rows: Any) -> Any:
    """Return the rows that a script makes, and note them if it reads no file."""
    return rows if OWN[0]["names"] else keep(rows)


def keep(rows: Any) -> Any:
    """Return a data set's rows, spread over it, and note them; a dictionary of splits keeps each."""
    if isinstance(rows, dict):
        for name, own in rows.items():
            rows[name] = keep(own)
        return rows
    if not hasattr(rows, "select") or not hasattr(rows, "__len__"):  # a stream
        return rows
    if len(rows) > MAX_ROWS:
        rows = rows.select(range(0, len(rows), len(rows) // MAX_ROWS))
    if all(type(own).__name__ in ("Value", "List", "Sequence", "dict") for own in rows.features.values()):
        OWN[0]["rows"] += list(rows)
    return rows


def keep_frame(frame: Any) -> Any:
    """Return a table's rows, spread over it, and note them."""
    if len(frame) > MAX_ROWS:
        frame = frame.iloc[:: len(frame) // MAX_ROWS]
    OWN[0]["rows"] += frame.to_dict("records")
    return frame


def read_own(original: Any, keep_rows: Callable[[Any], Any]) -> Any:
    """Return a reader of rows that also starts the fork, which notes them."""

    @functools.wraps(original)
    def read(*arguments: Any, **options: Any) -> Any:
        is_reading = begin()
        if is_reading and isinstance(arguments[:1] and arguments[0], (str, os.PathLike)) and _is_made(arguments[0]):
            leave()
        rows = original(*arguments, **options)
        return keep_rows(rows) if is_reading else rows

    return read


def shorten(path: Any, open_file: Callable[..., Any], frame: Any, options: Mapping[str, Any]) -> Any:
    """Return the file that a script opens, or one with its lines spread over it, and note its rows."""
    OWN[0]["names"].append(os.path.basename(str(path)))
    with open_file(path, encoding="utf-8", errors="replace") as stream:
        lines = stream.readlines() if str(path).endswith(".jsonl") else [stream.read(MAX_BYTES)]
    if options.get("errors") in ("ignore", "replace"):
        with open_file(path, encoding=options.get("encoding"), errors="ignore") as stream:
            whole, kept = sum(map(len, lines)), len(stream.read(None if len(lines) > 1 else MAX_BYTES))
        if kept < whole:
            text = f"{name_line(frame)} drops {whole - kept} of {whole} characters of {OWN[0]['names'][-1]}"
            OWN[0]["faults"].append(f"{text}, which {options.get('encoding') or 'the default encoding'} cannot decode")
    step = len(lines) // MAX_ROWS
    if step > 1 and os.path.getsize(path) > MAX_BYTES:
        lines = lines[::step]
        path = os.path.join(tempfile.mkdtemp(), os.path.basename(str(path)))
        with open_file(path, "w", encoding="utf-8") as stream:
            stream.writelines(lines)
    with contextlib.suppress(ValueError):
        rows = [json.loads(line) for line in lines if line.strip()]
        rows = rows[0] if len(rows) == 1 and isinstance(rows[0], list) else rows
        OWN[0]["rows"] += [row for row in rows if isinstance(row, dict)][:MAX_ROWS]
    return path


def watch_loaders(module: Any) -> None:
    """End the fork with what it finds in the batches of the first loader that trains."""
    original = module.DataLoader.__iter__

    @functools.wraps(original)
    def iterate(loader: Any) -> Any:
        if not is_own() or not sys.modules["torch"].is_grad_enabled() or _is_evaluated():
            return original(loader)
        loader.num_workers = 0
        with contextlib.suppress(Exception):
            leave(judge(*_read_batches(original(loader), loader.dataset)))
        return leave()

    take = module._BaseDataLoaderIter.__next__

    @functools.wraps(take)
    def note_first(iterator: Any) -> Any:
        batch = take(iterator)
        if not _REACHED:
            _REACHED.append("")
            note(os.environ["ATTNCHECK_WATCH"], "reached", "batches")
        return batch

    module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__ = iterate, note_first


def _is_evaluated() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in EVALUATIONS:
            return True
        frame = frame.f_back
    return False


def _read_batches(batches: Any, dataset: Any) -> tuple[list[Row], list[tuple[Row, Row]]]:
    """Return the rows of batches, and the pairs of sides if they have any."""
    rows, pairs, until = list[Row](), list[tuple[Row, Row]](), time.monotonic() + READING_SECONDS
    columns = " ".join(getattr(dataset, "column_names", None) or ())
    is_paired = "chosen" in columns and "rejected" in columns
    for batch in batches:
        parts = _name_parts(batch)
        sides = [[*_read_rows(parts, name)] for name in _list_tokens(parts)]
        if len(sides) == 2 and any("chosen" in name for name in _list_tokens(parts)):
            pairs += zip(*sides)
        elif sides and is_paired and len(sides[0]) % 2 == 0:
            half = len(sides[0]) // 2
            pairs += zip(sides[0][:half], sides[0][half:])
        rows += sides[0] if sides else []
        if len(rows) >= 2 * MAX_ROWS or time.monotonic() > until:
            break
    return rows, pairs


def _name_parts(batch: Any) -> dict[str, Any]:
    """Return a batch's tensors by name, or by place."""
    items = (
        batch.items() if hasattr(batch, "items") else enumerate(batch if isinstance(batch, (tuple, list)) else [batch])
    )
    return {str(name): value for name, value in items if hasattr(value, "dim") and value.dim()}


def _list_tokens(parts: Mapping[str, Any]) -> list[str]:
    """Return the names of a batch's tokens: of both sides if it has two, the chosen one first."""
    whole = [name for name, value in parts.items() if value.dim() == 2 and not value.dtype.is_floating_point]
    named = [name for name in whole if "input_ids" in name and "prompt" not in name]
    sided = sorted(name for name in named if "chosen" in name or "rejected" in name)
    return sided[:2] if len(sided) >= 2 else (named or whole)[:1]


def _read_rows(parts: Mapping[str, Any], name: str) -> Iterator[Row]:
    ids, mask = parts[name], parts.get(name.replace("input_ids", "attention_mask"))
    others = [own for other, own in parts.items() if other != name and own.shape == ids.shape]
    if mask is None or mask is ids or mask.shape != ids.shape:  # of a tuple
        mask = next((own for own in others if own.min() >= 0 and own.max() <= 1), None)
    labels = parts.get("labels", parts.get("label"))
    if labels is None and name.isdigit():
        labels = next((own for own in [*parts.values()][::-1] if own is not ids and own is not mask), None)
    for number in range(len(ids)):
        kept = ids[number] if mask is None else ids[number][mask[number] != 0]
        own = labels[number].tolist() if labels is not None and len(labels) == len(ids) else None
        yield tuple(kept.tolist()), own


def judge(rows: Sequence[Row], pairs: Sequence[tuple[Row, Row]]) -> dict[str, list[str]]:
    """Return what is wrong with the batches of the launch's own rows."""
    held = OWN[0]["rows"]
    import tokenizers

    encode = tokenizers.Tokenizer.from_file(os.path.join(os.environ["ATTNCHECK_OWN_MODEL"], TOKENIZER)).encode
    distinct = len({tuple(encode(" ".join(_list_texts(own))).ids) for own in held})  # that the tokenizer can tell
    if not rows or distinct < LEAST_ROWS:
        return {"notes": []} if rows else None  # type: ignore[return-value]
    names = ", ".join(dict.fromkeys(OWN[0]["names"])) or "the script"
    violations = [*judge_pairs(pairs, held)] if pairs else [*judge_rows(rows, distinct), *judge_labels(rows, held)]
    violations += OWN[0]["faults"]
    violations += judge_repeats([row for row, _ in [side for pair in pairs for side in pair] or rows], encode, held)
    violations += judge_joins([side for pair in pairs for side in pair] or rows, held)
    lost = {} if pairs else judge_turns(rows, held)
    code = "; ".join(CODE.get("data", ())[:WORDS])
    if violations and code:
        violations[0] += f"; the script's own code for rows: {code}"
    note = f"{len(held)} of the launch's own rows ({names}) were read up to its batches: {len(pairs) or len(rows)}"
    answers = {"violations": violations, "notes": [f"{note} {'pairs' if pairs else 'rows'}"]}
    return answers | {kind: [*answers.get(kind, ()), *lines] for kind, lines in lost.items()}


def judge_rows(rows: Sequence[Row], distinct: int) -> Iterator[str]:
    """Yield a line if rows that differ in the data are equal in the batches."""
    counts = Counter(ids for ids, _ in rows)
    expected = min(len(rows), distinct)
    if expected >= LEAST_ROWS and len(counts) <= max(1, SAME_ROWS * expected):
        (ids, count), *_ = counts.most_common(1)
        yield (
            f"{count} of {len(rows)} rows of the batches are the same {len(ids)} tokens, although {distinct} of the "
            "launch's own rows differ"
        )


def judge_repeats(rows: Sequence[tuple[int, ...]], encode: Any, held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line if most rows begin with the same tokens twice, as a prompt that is put before a text with it."""
    doubled = [size for size in map(_measure_repeat, rows) if size]
    own = sum(bool(_measure_repeat(encode(text).ids)) for row in held for text in _list_texts(row))
    if len(doubled) >= max(LEAST_ROWS, SWAPPED * len(rows)) and own < len(held) / 2:
        yield (
            f"{len(doubled)} of {len(rows)} rows of the batches begin with the same tokens twice (≤ {max(doubled)}), "
            "which the launch's own rows have once: a prompt is put before a text that already begins with it"
        )


def _measure_repeat(row: Sequence[int]) -> int:
    """Return the number of tokens with which a row begins twice, 0 for few of them."""
    ids = tuple(row)
    places = (n for n in range(LEAST_ROWS, len(ids) // 2 + 1) if ids[n : n + LEAST_ROWS] == ids[:LEAST_ROWS])
    return next((n for n in places if ids[:n] == ids[n : 2 * n]), 0)


def judge_labels(rows: Sequence[Row], held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about rows without a label, and labels that carry no information."""
    labels = [own for _, own in rows if own is not None]
    lists = [own for own in labels if isinstance(own, list) and len(own) > 1]
    if len(lists) >= LEAST_ROWS:
        bare = sum(all(label == -100 for label in own) for own in lists)
        if bare >= UNLABELLED * len(lists):
            longest = max(len(ids) for ids, _ in rows)
            yield (
                f"{bare} of {len(lists)} rows have no label at all, so nothing is learned of them; the longest row of "
                f"the batches has {longest} tokens"
            )
        learned = {label for own in lists for label in own if label != -100}
        if len(learned) == 1:
            yield f"the labels of all {len(lists)} rows are one token: no label carries information"
    plain = [own[0] if isinstance(own, list) and len(own) == 1 else own for own in labels]
    plain = [own for own in plain if isinstance(own, (int, float))]
    if len(plain) >= 2 * LEAST_ROWS and len({*plain}) == 1:
        named = {name: {row[name] for row in held if _is_class(row.get(name))} for name in (held[0] if held else ())}
        varied = [name for name, values in named.items() if 1 < len(values) <= len(held) // 2]
        if varied:
            yield (
                f"all {len(plain)} rows have the label {plain[0]}, although the launch's own rows have several values "
                f"of {', '.join(varied)}: the labels carry no information"
            )
    seen = dict[tuple[int, ...], set[Any]]()
    single = [(ids, own) for ids, own in rows if isinstance(own, (int, float))]
    for ids, own in single:
        seen.setdefault(ids, set()).add(own)
    both = sum(len(seen[ids]) > 1 for ids, _ in single)
    if len(single) >= 2 * LEAST_ROWS and len({own for _, own in single}) == 2 and both >= SWAPPED * len(single):
        yield f"{both} of {len(single)} rows are in the batches with both labels: each is liked and disliked"


def _is_class(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 40)


def judge_pairs(pairs: Sequence[tuple[Row, Row]], held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about pairs whose sides are equal, or belong to two prompts."""
    equal = [chosen for (chosen, _), (rejected, _) in pairs if chosen == rejected]
    alike = sum(_list_texts(row["chosen"]) == _list_texts(row.get("rejected")) for row in held if "chosen" in row)
    if len(pairs) >= LEAST_ROWS and len(equal) - alike >= SAME_PAIRS * len(pairs):
        cut = Counter(map(len, equal)).most_common(1)[0]
        why = f": {cut[1]} of them are cut to {cut[0]} tokens" * (cut[1] > len(equal) // 2)
        yield f"both sides of {len(equal)} of {len(pairs)} pairs are equal in the batches: nothing is learned{why}"
    sides = [tuple(ids for ids, _ in pair) for pair in pairs[:MAX_ROWS]]
    if len(sides) < LEAST_ROWS:
        return
    others = [max(sides, key=lambda other, own=own: _share(own[0], other[1])) for own in sides]  # type: ignore[misc]
    swapped = [other for own, other in zip(sides, others) if _share(own[0], other[1]) >= _share(own[0], own[1]) + CLEAR]
    if len({*swapped}) >= SWAPPED * len(sides):
        yield (
            f"in {len(swapped)} of {len(sides)} pairs the chosen side begins like the rejected side of another pair, "
            "not like its own: the two sides of a pair belong to different prompts"
        )


def _list_texts(value: Any) -> list[str]:
    """Return the texts of a row, at any depth."""
    if isinstance(value, Mapping):
        return [text for own in value.values() for text in _list_texts(own)]
    if isinstance(value, (list, tuple)):
        return [text for own in value for text in _list_texts(own)]
    return [str(value)] if isinstance(value, (str, int, float)) else []


def _share(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
    return next((n for n, (own, other) in enumerate(zip(first, second)) if own != other), min(len(first), len(second)))


def judge_joins(rows: Sequence[Row], held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines if two columns of the launch's own rows, or a text and its label, come from different rows.

    A row of a batch shows the own row of each column by words in a sequence that no other has. A few-shot prompt also
    has its row's.
    """
    words = _read_words()
    known, owners = {*words.values()}, dict[tuple[str, ...], set[tuple[int, str]]]()
    for number, own in enumerate(held):
        for column, text in own.items():
            runs = _list_runs_of_text(text, known)
            for run in runs:
                owners.setdefault(run, set()).add((number, column))
    counts, labelled = dict[tuple[str, ...], list[bool]](), list[tuple[int, Any]]()
    for ids, label in rows:
        columns: dict[str, set[int]] = {}
        for run in _list_runs([words[own] for own in ids if own in words]):
            if len(owners.get(run, ())) == 1:
                ((number, column),) = owners[run]
                columns.setdefault(column, set()).add(number)
        for pair in itertools.combinations(sorted(columns), 2):
            counts.setdefault(pair, []).append(columns[pair[0]].isdisjoint(columns[pair[1]]))
        numbers = set().union(*columns.values())
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
        if len(numbers) == 1 and isinstance(label, (int, float)):
            labelled.append((numbers.pop(), label))
    for names, apart in counts.items():
        if len(apart) >= LEAST_ROWS and sum(apart) >= SWAPPED * len(apart):
            yield (
                f"in {sum(apart)} of {len(apart)} rows of the batches, {' and '.join(map(repr, names))} come from "
                "different rows of the launch's own: they are joined wrongly"
            )
    if len(labelled) >= 2 * LEAST_ROWS:
        yield from _judge_label_rows(labelled, held)


def _judge_label_rows(labelled: Sequence[tuple[int, Any]], held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line if the labels are a column's values, each as often, but those of other rows."""
    labels, moved = [label for _, label in labelled], list[str]()
    for column in held[0]:
        values = [held[number].get(column) for number, _ in labelled]
        if not all(map(_is_class, values)) or len({*values}) < 2:
            continue
        is_class = len({*values}) <= len(values) // 2
        if values == labels or (is_class and len({*zip(values, labels)}) == len({*values})):
            return  # each value has one label
        counts = {tuple(sorted(Counter(own).values())) for own in (values, labels)}
        if len(counts) == 1 and (is_class or sorted(map(str, values)) == sorted(map(str, labels))):
            moved.append(column)
    if moved:
        yield (
            f"the labels of {len(labels)} rows are the values of {moved[0]!r} in the launch's own rows, but those of "
            "other rows: texts and labels are joined wrongly"
        )


def judge_turns(rows: Sequence[Row], held: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return a line if turns of a role, or answers, are in the launch's own rows, and no words of them in the batches.

    All roles are a fault, and the last of a conversation may be one: a script may leave the others out.
    """
    words = _read_words()
    present = {run for ids, _ in rows for run in _list_runs([words[own] for own in ids if own in words])}
    known, turns, last = {*words.values()}, dict[str, list[bool]](), Counter[str]()
    for turn in (turn for row in held for value in row.values() if isinstance(value, list) for turn in value):
        if isinstance(turn, dict):
            role, text = str(turn.get("role", turn.get("from"))), turn.get("content", turn.get("value"))
            runs = _list_runs_of_text(text, known)
            if runs:
                turns.setdefault(role, []).append(any(run in present for run in runs))
    for row in held:
        for name, text in row.items():
            runs = _list_runs_of_text(text, known)
            if runs and ANSWER.fullmatch(name):
                turns.setdefault(name, []).append(any(run in present for run in runs))
                last[name] += 1
    last.update(
        str(value[-1].get("role", value[-1].get("from"))) for row in held for value in row.values() if _is_talk(value)
    )
    lost = [role for role, kept in turns.items() if len(kept) >= LEAST_ROWS and sum(kept) <= BY_CHANCE * len(kept)]
    if not lost:
        return {}
    is_whole = len(lost) == len(turns) and not last.keys() & {name for row in held for name in row}
    kind = "violations" if is_whole else "warnings" if last.most_common(1)[0][0] in lost else "notes"
    text = f"no words of {' and '.join(map(repr, lost))} in the launch's own rows are in its batches"
    return {kind: [f"{text}: the chat template, or the script, leaves them out"]}


def _is_talk(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[-1], dict)


def _list_runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[n : n + WORDS]) for n in range(len(words) - WORDS + 1)]


def _list_runs_of_text(text: Any, known: set[str]) -> list[tuple[str, ...]]:
    """Return the runs of a text's words that the tokenizer knows; [] of what is no text."""
    return _list_runs([word for word in WORD.findall(text) if word in known]) if isinstance(text, str) else []


def _read_words() -> dict[int, str]:
    """Return the words that the fork's tokenizer knows of the launch's own rows, by number."""
    with open(os.path.join(os.environ["ATTNCHECK_OWN_MODEL"], TOKENIZER)) as stream:
        tokens = json.load(stream)["added_tokens"]
    return {own["id"]: own["content"] for own in tokens if WORD.fullmatch(own["content"])}


def judge_rewards(functions: Any, dataset: Any) -> None:
    """End the fork with what a script's reward functions return for completions made from its rows.

    They are each row's references, in usual forms and in the form that its prompt shows. A reward that is the same for
    all of them teaches nothing, and one that other forms earn, but the prompt's does not, teaches against the prompt.
    """
    rows = [dataset[number] for number in range(min(len(dataset), MAX_PROMPTS))] if hasattr(dataset, "__len__") else []
    functions = [own for own in (functions if isinstance(functions, list) else [functions]) if is_foreign(own)]
    violations, notes, called = list[str](), list[str](), list[str]()
    for function in functions:
        with contextlib.suppress(Exception):  # a server or a package may be missing
            with _list_caught(function) as errors:
                rewards = _call_reward(function, rows)
            name, values = describe_code(function), [value for kind in rewards.values() for value in kind]
            called.append(name)
            shown, joined, base = (rewards[kind] for kind in ("shown", "joined", "base"))
            if {*shown} == {*base} and len({*base}) == 1 and max(joined) > base[0]:
                violations.append(
                    f"{name} returns {base[0]:g} for all {len(shown)} completions in the form that the prompt shows, "
                    f"as for no answer, and {max(joined):g} for the same without line breaks"
                )
            elif errors and errors.most_common(1)[0][1] >= len(values) > 0:
                kind, line = errors.most_common(1)[0][0]
                text = f"{name} catches {kind} in its line {line} for each of {len(values)} completions"
                violations.append(f"{text} made of the launch's own rows, and returns {values[0]:g}")
            elif len({*values}) == 1 and len(values) >= LEAST_ROWS:
                # otherwise its form is the script's own, and perhaps none of those
                (violations if shown and _list_references(function, rows[0]) else notes).append(
                    f"{name} returns {values[0]:g} for all {len(values)} completions made of the launch's own rows, "
                    "with each row's own references in usual forms, and in the prompt's if it shows one"
                )
    note = f"{len(called)} reward functions were called with completions made of {len(rows)} of the launch's own rows"
    leave({"violations": violations, "notes": [note, *notes] if called else []})


@contextlib.contextmanager
def _list_caught(function: Any) -> Iterator[Counter[tuple[str, int]]]:
    """Count the errors of code, with their lines, that are raised in a function's file; it may catch them.

    None may be what a pattern that does not match returns.
    """
    errors, file = Counter[tuple[str, int]](), unwrap(function).__code__.co_filename

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if event == "exception" and isinstance(argument[1], OF_CODE) and "NoneType" not in str(argument[1]):
            errors[argument[0].__name__, frame.f_lineno] += 1
        return trace

    sys.settrace(trace)
    try:
        yield errors
    finally:
        sys.settrace(None)


def _list_references(function: Any, row: Mapping[str, Any]) -> list[str]:
    """Return the columns that a reward function takes by name, at most those that completions are made of."""
    names = [name for name in inspect.signature(function).parameters if name in row and name not in TRL_NAMES]
    return names[:MAX_REFERENCES]


def _call_reward(function: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return a function's rewards for completions, by how they are made of a row and its prompt."""
    made: list[tuple[str, Mapping[str, Any], str]] = []
    for row in rows:
        prompt = row["prompt"]
        text = prompt if isinstance(prompt, str) else "\n".join(str(turn["content"]) for turn in prompt)
        names = _list_references(function, row) or [name for name in row if name not in TRL_NAMES]
        values = [row[name] for name in names if row[name] not in ("", None)]
        references = [own if isinstance(own, str) else json.dumps(own, default=str) for own in values]
        made += [("base", row, own) for own in NO_ANSWERS]
        for own in references[:MAX_REFERENCES] or ["1"]:
            if shown := _fill_form(text, own):
                made += [("shown", row, shown), ("joined", row, " ".join(shown.split()))]
                made += [("joined", row, shown.replace("\n", ""))]
            made += [("other", row, form.format(own)) for form in FORMS]
    columns = {name: [row[name] for _, row, _ in made] for name in rows[0] if name != "prompt"}
    prompts, texts = [row["prompt"] for _, row, _ in made], [text for _, _, text in made]
    is_talk = not isinstance(prompts[0], str)
    completions = [[{"role": "assistant", "content": own}] if is_talk else own for own in texts]
    rewards = function(prompts=prompts, completions=completions, completion_ids=[[1]] * len(made), **columns)
    kinds: dict[str, list[float]] = {"shown": [], "joined": [], "base": [], "other": []}
    for reward, (kind, _, _) in zip(rewards, made):
        kinds[kind].append(float(reward))
    return kinds


def _fill_form(prompt: str, reference: str) -> str:
    """Return a completion in the form that a prompt shows by tags, with a reference in its last part; "" if by none."""
    match = SHOWN_FORM.search(prompt)
    if match is None or len(match[0]) > MAX_FORM:
        return ""
    parts = list(CONTENT.finditer(match[0]))
    text, end = "", 0
    for part in parts:
        inner = part[2]
        text += match[0][end : part.start(2)] + inner.replace(
            inner.strip(), reference if part is parts[-1] else "It follows from the question."
        )
        end = part.end(2)
    return text + match[0][end:] if all(part[2].strip() for part in parts) else ""
