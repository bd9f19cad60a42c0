"""Reads the trainers and configurations that a program certainly makes, and the model that it loads; nothing is run.

Their keywords, the trainer's own `compute_loss`, and a `device_map` count only if the call that has them is made for
certain, and a `device_map` only if the trainer gets that model. A class of the program counts as the library's that it
derives from.
"""

import ast
import re
from collections.abc import Sequence

from attncheck.core.launch import NOWHERE, MadeTrainer, Setting, SourceLocation
from attncheck.doctor.probes.payload.links.source import imported_modules
from attncheck.lint.files.traced_models import loads_model, trace_models
from attncheck.lint.programs.certain_calls import find_certain_calls, find_certain_nodes
from attncheck.lint.programs.modules import Definition, External, SourceModule, SourceTree
from attncheck.lint.programs.syntax import list_imports, list_kind

MAX_BASES = 8
BASES = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer")  # they share `training_step`
CONSTRUCTOR = re.compile(r"(?:trl|transformers)\.\w*(?:Trainer|Config|TrainingArguments)")
COUNT = "num_items_in_batch"
HEAD = re.compile(r"For[A-Z]\w+|$")
# A class with one of these scales the loss itself, or tells the Trainer to (transformers 5.23.0 trainer.py:2103).
SCALES = ("gradient_accumulation_steps", "model_accepts_loss_kwargs", "loss_is_scaled_for_ga", "training_step", "sum'")
MEANS = ("cross_entropy(", "CrossEntropyLoss(", ".mean(", ".loss", "['loss']", "outputs[0]")
FUSED = {"enable_flash_sdp", "enable_mem_efficient_sdp"}
SWITCH = re.compile(rf"torch\.backends\.cuda\.({'|'.join(sorted(FUSED))})\((?:enabled=)?False\)")
PADS_WITH_END = re.compile(rb"(\w+)\.pad_token = \1\.eos_token")
QUOTED_NAME = re.compile(rb"[\"']pad_token[\"']")  # add_special_tokens({"pad_token": "[PAD]"})
# Labels are all tokens of rows of one length: those that `group_texts` cuts, or that this collator can stack.
COPIED = re.compile(rb"\[[\"']labels[\"']\] = \w+\[[\"']input_ids[\"']\](?:\.copy\(\)|\.clone\(\))?\s")
EQUAL = re.compile(
    rb"\bdefault_data_collator\b|\[\w+\[(\w+) ?: ?\1 ?\+ ?(\w+(?:\.\w+)*)\] for \1 in range\(0, \w+, \2\)\]"
)
MASKED = re.compile(rb"-100\b|(?i:ignore_index)|DataCollatorFor")
SPREADING = {"auto", "balanced", "balanced_low_0", "sequential"}
Class = tuple[str, SourceModule, ast.ClassDef]


def find_made(tree: SourceTree, modules: Sequence[SourceModule]) -> tuple[tuple[Setting, ...], MadeTrainer]:
    """Return the keywords of the libraries' classes that a program certainly makes, and its trainer if it makes one.

    The keywords are named "trl.SFTTrainer.tokenizer". unsloth replaces TRL's classes (2026.1.1 models/rl.py).
    """
    imports = ((module.package, node) for module in modules for node in list_imports(module.body))
    if any(name.partition(".")[0] == "unsloth" for pair in imports for name in imported_modules(*pair)):
        return (), MadeTrainer()
    calls = [(module, call, *_follow_bases(tree, module, call.func)) for module, call in find_certain_calls(modules)]
    keywords = [
        Setting(f"{library}.{word.arg}", "", _locate(module, word), NOWHERE)
        for module, call, own, library in calls
        for word in call.keywords
        if word.arg and CONSTRUCTOR.fullmatch(library) and not any(map(_changes_constructor, own))
    ]
    made = [(call, own) for _, call, own, library in calls if library in BASES]
    if len(made) != 1:
        return tuple(keywords), MadeTrainer()
    origins = trace_models(tuple(item.body for item in modules)).find_origins(made[0][0])
    loads = [(module, call) for module, call, *_ in calls if call in origins and loads_model(call)]
    places = [(module, word.value) for module, call in loads for word in call.keywords if word.arg == "device_map"]
    is_spread = all(getattr(value, "value", "") in SPREADING for _, value in places) and len(places) == len(origins)
    spread = _locate(*places[0]) if is_spread and places else None
    heads = {HEAD.findall(ast.unparse(item))[0] if loads_model(item) else "" for item in origins}
    head = heads.pop() if len(heads) == 1 else ""
    loaded = ((module, node) for module in modules for node in list_kind(module.body, ast.Call) if node in origins)
    plain = [_find_plain_forward(tree, module, call) for module, call in loaded]
    reading = _read_loss(made[0][1], head == "ForCausalLM", spread)
    is_plain = bool(plain) and all(plain) and len(plain) == len(origins) and not _scales(made[0][1])
    made_trainer = reading._replace(forwards=tuple(dict.fromkeys(filter(None, plain))), is_plain=is_plain, head=head)
    padding, contents = _find_padding_with_end(modules, made[0][0]), b"\n".join(module.content for module in modules)
    is_equal = COPIED.search(contents) and EQUAL.search(contents) and not MASKED.search(contents)
    return tuple(keywords), made_trainer._replace(pads_with_end=padding, has_equal_rows=bool(is_equal))


def _find_padding_with_end(modules: Sequence[SourceModule], trainer: ast.Call) -> SourceLocation | None:
    """Return where a program certainly sets `pad_token = eos_token`, if the trainer has its default collator."""
    has_own = len(trainer.args) > 2 or any(word.arg in (None, "data_collator") for word in trainer.keywords)
    if has_own or not any(PADS_WITH_END.search(module.content) for module in modules):
        return None
    assigned = [(module, node) for module, node in find_certain_nodes(modules) if isinstance(node, ast.Assign)]
    places = [(module, node) for module, node in assigned if PADS_WITH_END.fullmatch(ast.unparse(node).encode())]
    nodes = [node for module in modules for node in list_kind(module.body, ast.Attribute)] if places else []
    stored = [node for node in nodes if node.attr == "pad_token" and isinstance(node.ctx, ast.Store)]
    is_only = len(stored) == 1 and not any(QUOTED_NAME.search(module.content) for module in modules)
    return SourceLocation(places[0][0].shown_path, places[0][1].lineno, 1) if is_only else None


def _find_plain_forward(tree: SourceTree, module: SourceModule, load: ast.Call) -> SourceLocation | None:
    """Return the forward of the program's own model that a call loads, if it takes no **kwargs."""
    resolved = tree.resolve(module, load.func.value) if isinstance(load.func, ast.Attribute) else None
    if not isinstance(resolved, Definition) or not isinstance(resolved.node, ast.ClassDef):
        return None
    if "accepts_loss_kwargs" in ast.unparse(resolved.node):
        return None
    functions = (item for item in resolved.node.body if isinstance(item, ast.FunctionDef) and item.name == "forward")
    return next((_locate(resolved.module, item) for item in functions if item.args.kwarg is None), None)


def find_unfused(modules: Sequence[SourceModule]) -> SourceLocation | None:
    """Return where a program certainly switches off SDPA's fused kernels for good; None if it does not."""
    switched = [
        (match[1], module, call)
        for module, call in find_certain_calls(modules)
        if (match := SWITCH.fullmatch(ast.unparse(call)))
    ]
    nodes = (node for module in modules for node in list_kind(module.body, ast.Attribute))
    all_switches = [node for node in nodes if node.attr in FUSED] if switched else []
    is_final = {name for name, *_ in switched} == FUSED and len(all_switches) == len(switched)
    return _locate(*switched[0][1:]) if is_final else None


def _follow_bases(tree: SourceTree, module: SourceModule, expression: ast.expr) -> tuple[list[Class], str]:
    """Return the program's classes from the one that is made to a library's, and that one as "trl.SFTTrainer"."""
    own: list[Class] = []
    resolved = tree.resolve(module, expression)
    while isinstance(resolved, Definition) and isinstance(resolved.node, ast.ClassDef) and len(own) < MAX_BASES:
        node = resolved.node
        own.append((node.name, resolved.module, node))
        resolved = tree.resolve_base(resolved.module, node, node.bases[-1]) if node.bases else None
    parts = resolved.name.split(".") if isinstance(resolved, External) else [""]
    return own, f"{parts[0]}.{parts[-1]}"


def _changes_constructor(own: Class) -> bool:
    """Return whether a class may take other keywords than its last base."""
    _, _, node = own
    has_own = any(isinstance(item, ast.FunctionDef) and item.name == "__init__" for item in node.body)
    return has_own or bool(node.decorator_list) or len(node.bases) != 1


def _locate(module: SourceModule, node: ast.expr | ast.FunctionDef | ast.keyword) -> SourceLocation:
    return SourceLocation(module.shown_path, node.lineno, node.col_offset + 1)


def _scales(classes: Sequence[Class]) -> bool:
    """Return whether one of the program's classes of trainers scales the loss itself, or tells the Trainer to."""
    return any(mark in ast.unparse(node) for _, _, node in classes for mark in SCALES)


def _read_loss(classes: Sequence[Class], is_causal: bool, spread: SourceLocation | None) -> MadeTrainer:
    functions = ((name, module, item) for name, module, node in classes for item in node.body)
    for name, module, function in functions:
        if isinstance(function, ast.FunctionDef) and function.name == "compute_loss":
            names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
            takes_count = COUNT in names or function.args.kwarg is not None
            is_mean = is_causal and not _scales(classes) and _returns_mean(function)
            return MadeTrainer(f"{name}.compute_loss", _locate(module, function), takes_count, is_mean, spread)
    return MadeTrainer(spread=spread)


def _returns_mean(function: ast.FunctionDef) -> bool:
    """Return whether a loss is a plain mean over the labels of one micro-batch, whatever the whole batch has."""
    body = "\n".join(map(ast.unparse, function.body))
    others = ("super()", COUNT, *([function.args.kwarg.arg] if function.args.kwarg else []))
    has_labels = any(name in body for name in ("label", ".loss", "['loss']"))
    return has_labels and any(mark in body for mark in MEANS) and not any(name in body for name in others)
