"""Reads the trainer that a program certainly makes: its own `compute_loss`, and the model that it is given.

Nothing is run. Only a class that derives from a library's trainer counts, and only the call that makes it.
"""

import ast
from collections.abc import Iterator, Sequence

from attncheck.core.launch import MadeTrainer, SourceLocation
from attncheck.lint.programs.certain_calls import find_certain_calls
from attncheck.lint.programs.modules import Definition, External, SourceModule, SourceTree

MAX_BASES = 8
BASES = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer")  # they share `training_step`
COUNT = "num_items_in_batch"
# A class with one of these scales the loss itself, or tells the Trainer to (transformers 5.23.0 trainer.py:2103).
SCALES = (COUNT, "gradient_accumulation_steps", "model_accepts_loss_kwargs", "loss_is_scaled_for_ga", "training_step")
MEANS = ("cross_entropy(", "CrossEntropyLoss(", ".mean(", ".loss", "['loss']", "outputs[0]")
SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")
LOADS = ("from_pretrained", "from_config")
CAUSAL_MODELS = "ForCausalLM"


def find_made_trainer(tree: SourceTree, modules: Sequence[SourceModule]) -> MadeTrainer | None:
    """Return what is known of the only trainer that a program certainly makes; None if there is not exactly one."""
    calls = list(find_certain_calls(modules))
    chains = [(call, list(_list_classes(tree, module, call.func))) for module, call in calls]
    made = [(call, chain) for call, chain in chains if chain and chain[-1][1] in BASES]
    if len(made) != 1:
        return None
    call, chain = made[0]
    loads = [(module, node) for module, node in calls if _loads_model(node)]
    maps = [word for _, node in loads for word in node.keywords if word.arg == "device_map"]
    texts = {word.value.value for word in maps if isinstance(word.value, ast.Constant)}
    takes_loaded = any(word.arg == "model" and isinstance(word.value, ast.Name) for word in call.keywords)
    spread = None
    if takes_loaded and len(maps) == len(loads) > 0 and texts and texts <= set(SPREADING):
        owner = next(module for module, node in loads if maps[0] in node.keywords)
        spread = SourceLocation(owner.shown_path, maps[0].value.lineno, maps[0].value.col_offset + 1)
    is_causal = bool(loads) and all(CAUSAL_MODELS in ast.unparse(node.func) for _, node in loads)
    return _read_loss(chain, is_causal, spread)


def _read_loss(
    chain: Sequence[tuple[Definition | None, str]], is_causal: bool, spread: SourceLocation | None
) -> MadeTrainer:
    classes = [(owner, owner.node) for owner, _ in chain if owner is not None and isinstance(owner.node, ast.ClassDef)]
    text = "\n".join(ast.unparse(node) for _, node in classes)
    for owner, node in classes:
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and function.name == "compute_loss":
                names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
                takes_count = COUNT in names or function.args.kwarg is not None
                is_mean = is_causal and not _scales(text, function)
                location = SourceLocation(owner.module.shown_path, function.lineno, function.col_offset + 1)
                return MadeTrainer(f"{node.name}.compute_loss", location, takes_count, is_mean, spread)
    return MadeTrainer(spread=spread)


def _scales(text: str, function: ast.FunctionDef) -> bool:
    """Return whether a loss may be divided by the whole batch: it is no plain mean, or something scales it."""
    body = "\n".join(map(ast.unparse, function.body))
    passes_on = "super()" in body or (function.args.kwarg is not None and function.args.kwarg.arg in body)
    used = text.count(COUNT) - sum(argument.arg == COUNT for argument in function.args.args)
    is_scaled = used > 0 or any(name in text for name in SCALES[1:]) or "sum'" in body
    has_labels = any(name in body for name in ("label", ".loss", "['loss']"))
    return passes_on or is_scaled or not has_labels or not any(mark in body for mark in MEANS)


def _list_classes(
    tree: SourceTree, module: SourceModule, expression: ast.expr
) -> Iterator[tuple[Definition | None, str]]:
    """Yield the class that a call makes and its bases, up to that of a library, of which only the name is known."""
    resolved = tree.resolve(module, expression)
    for _ in range(MAX_BASES):
        if isinstance(resolved, External):
            parts = resolved.name.split(".")
            yield None, f"{parts[0]}.{parts[-1]}"
            return
        if not isinstance(resolved, Definition) or not isinstance(resolved.node, ast.ClassDef):
            return
        node = resolved.node
        if not node.bases or ast.unparse(node.bases[-1]) == node.name:
            return
        yield resolved, node.name
        resolved = tree.resolve(resolved.module, node.bases[-1])


def _loads_model(call: ast.Call) -> bool:
    """Return whether a call loads a language model: `AutoModelForCausalLM.from_pretrained(…)`."""
    is_load = isinstance(call.func, ast.Attribute) and call.func.attr in LOADS
    return is_load and "For" in ast.unparse(call.func)
