"""Lists the script's own code that takes part in a training, by the part that it computes: data, loss or steps."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Collection
from typing import Any

from .absent import is_script, note, read_scripts
from .modules import describe_code, is_foreign, unwrap

# Words in the names of methods of transformers' Trainer (5.17.0 trainer.py); all other methods are part of the loss.
WORDS = {"data": ("collat", "dataloader", "sampler", "dataset"), "steps": ("optimizer", "scheduler")}
OF_BATCHES = ("compute_loss", "training_step")  # methods that read a batch; others may read the data themselves
CODE: dict[str, list[str]] = {}
LOSS_SETTINGS = (
    *("loss_type", "beta", "label_smoothing", "label_smoothing_factor", "alpha", "simpo_gamma", "cpo_alpha"),
    *("desirable_weight", "undesirable_weight", "ld_alpha", "use_weighting", "rpo_alpha", "reference_free"),
    *("loss_weights", "temperature", "epsilon", "epsilon_high", "top_entropy_quantile", "entropy_coef"),
    *("use_adaptive_entropy", "off_policy_mask_threshold"),
)
# Columns that TRL 1.16.0 tokenizes, not the text from a formatting function: trainer/sft_trainer.py (`tokenize_fn`).
CONVERSED = frozenset({"messages", "prompt"})
# Parts of tokens that released tokenizers have: a script adds them only to the synthetic one. Padding is not learned.
COMMON = re.compile(r"im_start|im_end|endoftext|header_id|eot|pad|unk|bos|eos|INST|^</?s>$", re.IGNORECASE)
TRAINER = "trainer"  # in CODE if transformers' Trainer trains, whose script only starts it: its loss


def note_code(part: str, function: Any) -> set[str]:
    """Add a function, or the methods of an object, if their code belongs to no installed package; return its texts."""
    methods = [value for kind in type(function).__mro__ for name, value in vars(kind).items() if name != "__init__"]
    texts: set[str] = set()
    for own in [function] if hasattr(unwrap(function), "__code__") else methods:
        if is_foreign(own):
            texts |= {value for value in unwrap(own).__code__.co_consts if isinstance(value, str)}
            if (text := describe_code(own)) not in CODE.setdefault(part, []):
                CODE[part].append(text)
    return texts


def note_order(frame: Any, samplers: list[Any]) -> None:
    """Add the line of a script's loop over epochs whose sampler draws the same order in each, without `set_epoch`.

    torch 2.13 utils/data/distributed.py. accelerate's loaders call it themselves (1.15.0 data_loader.py).
    """
    is_training = sys.modules["torch"].is_grad_enabled()  # an evaluation may have one order
    own = find_script_frame(frame)
    is_seeded = any(getattr(sampler, "shuffle", False) and hasattr(sampler, "set_epoch") for sampler in samplers)
    text = "".join(linecache.getlines(own.f_code.co_filename)) if own is not None and is_seeded and is_training else ""
    loops = (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.For, ast.While)))
    inner = [node for loop in loops for part in loop.body for node in ast.walk(part) if isinstance(node, ast.For)]
    if any(node.lineno == own.f_lineno for node in inner):
        text += read_scripts()  # another file's helper may call it
        CODE["unset"] = [name_line(own)] * (not re.search("set_epoch|accelerat", text, re.IGNORECASE))


def watch_added_tokens(base: Any) -> None:
    """Note the tokens that a script adds to a tokenizer, and the line that does.

    transformers 5.17.0 tokenization_utils_base.py: both methods count the tokens that are new. Their numbers do not
    follow the others if a vocabulary has gaps.
    """

    def note_added(add: Any) -> Any:
        @functools.wraps(add)
        def call(tokenizer: Any, *arguments: Any, **options: Any) -> Any:
            held, frame = tokenizer.get_vocab(), sys._getframe(1)
            result = add(tokenizer, *arguments, **options)
            added = tokenizer.get_added_vocab() if is_script(frame.f_globals) else {}
            own = [str(added[text]) for text in added if text not in held and not COMMON.search(text)]
            if own:
                CODE["added"], CODE["adds"] = [*dict.fromkeys((*CODE.get("added", ()), *own))], [name_line(frame)]
            return result

        return call

    for name in ("add_tokens", "add_special_tokens"):
        setattr(base, name, note_added(getattr(base, name)))


def watch_prompts(base: Any) -> None:
    """Note the first line of a script that writes a prompt without the header of an answer, or an answer with a header
    behind it, each with the header's tokens."""
    write = base.apply_chat_template

    @functools.wraps(write)
    def call(tokenizer: Any, conversation: Any, *arguments: Any, **options: Any) -> Any:
        turn = conversation[-1] if isinstance(conversation, list) and conversation else None
        role = turn.get("role") if isinstance(turn, dict) else ""
        kind = "opened" if options.get("add_generation_prompt") else "headless"
        is_wrong = role == {"opened": "assistant", "headless": "user"}[kind] and kind not in CODE
        if is_wrong and is_script((frame := sys._getframe(1)).f_globals):
            with contextlib.suppress(Exception):  # the template's author decides what it refuses
                ways = (False, True)
                plain, headed = (write(tokenizer, conversation, tokenize=False, add_generation_prompt=n) for n in ways)
                header = tokenizer(headed.removeprefix(plain), add_special_tokens=False)["input_ids"]
                CODE[kind] = [name_line(frame), *map(str, header)] * bool(header)
        return write(tokenizer, conversation, *arguments, **options)

    base.apply_chat_template = call


def note_loss(frame: Any) -> None:
    """Add the line of a script's own loop that differentiates a loss."""
    if "loss" not in CODE and TRAINER not in CODE and (own := find_script_frame(frame)) is not None:
        CODE["loss"] = [name_line(own)]


def note_trainer(trainer: Any) -> None:
    """Add the methods that a script gives transformers' Trainer and its callbacks, and the functions that it passes."""
    losses = (
        vars(kind)[name]
        for kind in type(trainer).__mro__
        for name in ("_compute_loss", "get_batch_loss_metrics", "compute_loss")  # the most specific first
        if name in vars(kind)
    )
    CODE[TRAINER], texts = [describe_code(inspect.unwrap(function)) for function in losses][:1], set()
    for kind in type(trainer).__mro__:
        for name, value in vars(kind).items():
            if not name.startswith("__"):
                parts = (part for part, words in WORDS.items() if any(word in name for word in words))
                own = note_code(next(parts, "loss"), value) if callable(value) else set()
                texts |= own if name in OF_BATCHES else set()
    texts |= note_code("loss", getattr(trainer, "compute_loss_func", None))
    texts |= note_code("data", trainer.data_collator)
    for callback in trainer.callback_handler.callbacks:
        for name, value in vars(type(callback)).items():
            if name.startswith("on_"):
                note_code("steps", value)
    CODE["dropped"] = sorted(texts.intersection(_list_dropped(trainer)))
    formatting = getattr(trainer, "_formatting_func", None)
    if formatting is not None and not CONVERSED.isdisjoint(getattr(trainer.train_dataset, "column_names", None) or ()):
        CODE["unused"] = [describe_code(formatting)]


def note_loss_settings(trainer: Any) -> None:
    """Note the settings of a trainer's loss that are not its release's defaults: a script may compute them.

    A script's class may have other defaults, and more settings.
    """
    kinds = [kind for kind in type(trainer.args).__mro__ if dataclasses.is_dataclass(kind)]
    released = (kind for kind in kinds if not is_script(vars(sys.modules[kind.__module__])))
    for field in dataclasses.fields(next(released, kinds[-1])):
        make, value = field.default_factory, getattr(trainer.args, field.name, None)
        default = field.default if make is dataclasses.MISSING else make()
        text = str(value[0] if isinstance(value, list) and len(value) == 1 else value)
        if field.name in LOSS_SETTINGS and value not in (None, default) and os.sep not in text:
            note(os.environ["ATTNCHECK_WATCH"], "loss", f"{field.name}={text}")


def _list_dropped(trainer: Any) -> set[str]:
    """Return the columns of a training data set that no argument of the model has, so that the trainer drops them.

    A framework whose source is in the launch's folder (`ATTNCHECK_FORK`) reads columns that its rows need not have.
    """
    columns = getattr(trainer.train_dataset, "column_names", None)
    is_kept = "ATTNCHECK_FORK" in os.environ or not trainer.args.remove_unused_columns
    if is_kept or not isinstance(columns, list):
        return set()
    trainer._set_signature_columns_if_needed()
    return {*columns} - {*trainer._signature_columns}


def note_patterns(names: Collection[str]) -> None:
    """Note the texts that a script looks for in the names of a model's parameters, and that none of them contains.

    A list of such texts may be for several types of models: the optimiser's groups show what is wrong.
    """
    if "patterns" in CODE:
        return
    tree = ast.parse("".join(linecache.getlines(str(getattr(sys.modules["__main__"], "__file__", "")))))
    lists = (node for node in ast.walk(tree) if isinstance(node, (ast.List, ast.Tuple, ast.Set)))
    texts = [[str(getattr(own, "value", "")) for own in node.elts] for node in lists]
    matching = [own for own in texts if any(text and text in name for text in own for name in names)]
    CODE["patterns"] = [text for own in matching for text in own if not any(text in name for name in names)]


def find_script_frame(frame: Any, count: int = sys.maxsize) -> Any:
    """Return the innermost frame of a script, of so many: a frame and its callers; None if there is none."""
    while frame is not None and count and not is_script(frame.f_globals):
        frame, count = frame.f_back, count - 1
    return frame if count else None


def name_line(frame: Any) -> str:
    """Return the line that a frame executes."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
