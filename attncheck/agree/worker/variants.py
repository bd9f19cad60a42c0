"""Possible variants of a side's model: its folder, batches, inputs, configuration or weights."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor

from attncheck.agree.worker import scoring
from attncheck.agree.worker.hypotheses import Context, Variant
from attncheck.agree.worker.models import Sample, apply_override, gather, read_config, rms
from attncheck.agree.worker.routes import score_shifted
from attncheck.agree.worker.transforms import split
from attncheck.agree.worker.weights import load_from, name_differences

ENDINGS = range(1, 7)  # tokens of a generation prompt
ROPE_FACTORS = (2.0, 4.0, 8.0)
ROPE_BASES = (1e4, 5e5, 1e6)
TRAINED_LENGTH = 32768  # positions of many models before YaRN extends them
GELUS = ("gelu", "gelu_pytorch_tanh")
EPSILONS = (1e-5, 1e-6)  # of norms
FP8_MAX = 448.0  # the largest float8_e4m3fn
QUANTISED_SHARE = 0.9  # that must be explained: scales and groups of engines vary
TESTED_KEYS = 8  # keys of a large model that are tried: each takes long
NO_SINK = -1e4  # an attention sink without weight
CACHE_BLOCK = 16  # tokens of a block of vLLM's prefix cache


def iter_variants(context: Context, off: Sequence[bool], observed: Tensor) -> Iterator[Variant]:
    """Yield the possible variants of a side's model, the cheapest first.

    `off` marks the samples that it gets wrong, and `observed` are its log-probabilities.
    """
    yield from _iter_folder_variants(context)
    yield from _iter_layouts(context)
    yield from _iter_inputs(context)
    yield from _iter_shifts(context)
    yield from _iter_truncations(context, off)
    yield from _iter_configurations(context)
    yield from _iter_weights(context)
    yield from _iter_modules(context)
    yield from _iter_orders(context)
    yield from _iter_other_prompts(context, observed)
    yield from _iter_quantised(context)


def _iter_folder_variants(context: Context) -> Iterator[Variant]:
    """Yield variants with the engine's own folder and overrides."""
    overrides = context.rollout.overrides
    if overrides and overrides != context.plan.overrides:
        names = ", ".join(f"{key}={text}" for key, text in overrides)
        yield Variant(
            "engine-overrides",
            f"the engine overrides the model's configuration: {names}",
            "give the trainer the same configuration",
            lambda: context.score_other(overrides),
            ("engine",),
        )
    if context.plan.overrides:
        names = ", ".join(f"{key}={text}" for key, text in context.plan.overrides)
        yield Variant(
            "trainer-overrides",
            f"the trainer overrides the model's configuration and the engine does not: {names}",
            "give the engine the same configuration",
            lambda: context.score_other(dropped=True),
            ("engine",),
        )
    if not context.engine_folder:
        return
    differences = name_differences(context.folder, context.engine_folder)
    for key, own, other in differences.keys:
        yield Variant(
            f"configuration:{key}",
            f"{key} is {other} in the engine's config.json and {own} in the trainer's",
            f"use the same {key} in both",
            partial(context.score_other, ((key, other),)),
            ("engine",),
        )
    for name, text, remedy, tensors in differences.weights:
        yield Variant(
            f"weights:{name}",
            text,
            remedy,
            lambda tensors=tensors: context.score(  # type: ignore[misc]
                change=lambda model: load_from(model, context.engine_folder, tensors)
            ),
            ("engine",),
        )
    if differences.keys or differences.weights:
        yield Variant(
            "other-model",
            f"the engine loads a different model: {differences.summary}",
            "load the same model on both sides",
            lambda: context.score_other(folder=context.engine_folder),
            ("engine",),
        )


def _iter_layouts(context: Context) -> Iterator[Variant]:
    """Yield variants of the trainer's batches; the exact values use separate documents."""
    layout = context.plan.layout

    yield from _iter_routes(context)
    yield from _iter_masks(context)
    yield Variant(
        "not-causal",
        "tokens attend to later tokens: the mask is not causal",
        "use causal attention",
        lambda: context.score_batches(_make_full),
    )
    yield Variant(
        "positions-shifted",
        "positions begin at 1 instead of 0",
        "start each prompt's position_ids at 0",
        lambda: context.score_batches(lambda samples: _make_later(samples, [1] * len(samples))),
    )
    if layout == "left":
        yield Variant(
            "padding-counted-as-positions",
            "prompts are padded on the left without position_ids: positions count the padding",
            "pass position_ids that begin at each prompt's first token",
            lambda: context.score_batches(_make_counted),
            ("trainer",),
        )
    if layout != "packed":
        for name, passes in (("padding-attended", True), ("padding-attended:counted", False)):
            yield Variant(
                name,
                "padding is attended to: the mask is not used",
                "pass the attention mask",
                partial(context.score_batches, _make_attended(layout, passes)),
                ("trainer",),
            )
        return
    yield Variant(
        "packed-documents-leak",
        "documents of a packed row attend to earlier documents",
        "use an attention implementation that separates packed documents (flash_attention_2)",
        lambda: context.score_batches(_make_leaking),
        ("trainer",),
    )
    yield Variant(
        "packed-positions-run-on",
        "positions do not restart within a packed row, and documents attend to earlier documents",
        "pass position_ids that restart with each document",
        lambda: context.score_batches(lambda samples: scoring.pack(samples, resets=False)),
        ("trainer",),
    )


def _iter_routes(context: Context) -> Iterator[Variant]:
    """Yield variants with replayed expert routes that are shifted, by one token or by each row's padding."""
    samples, size = context.samples, context.plan.batch
    lengths = [len(sample.prompt) for sample in samples]
    starts = [place - place % size for place in range(len(samples))]
    padding = [max(lengths[start : start + size]) - own for start, own in zip(starts, lengths, strict=True)]
    choices = [(str(step), "one token", [step] * len(samples)) for step in (1, -1)]
    choices += [("padding", "each row's padding", padding)] if context.plan.layout == "left" else []
    for name, text, shifts in choices:

        def compute(shifts: list[int] = shifts) -> list[Tensor]:
            score = partial(scoring.score_each, context.model)
            pairs = zip(samples, shifts, strict=True)
            return [score_shifted(context.model, partial(score, [own]), shift)[0].logits for own, shift in pairs]

        yield Variant(
            f"routes-shifted:{name}",
            f"tokens are sent to the experts of other tokens: routes are shifted by {text}",
            "align each replayed route with its token, after padding",
            compute,
        )


def _iter_masks(context: Context) -> Iterator[Variant]:
    """Yield masks built from token ids, which also mask content with the padding token's id."""
    token = read_config(context.folder).pad_token_id
    if not any(token in sample.tokens for sample in context.samples):
        return

    def make(samples: Sequence[Sample], counts: bool) -> scoring.Batch:
        batch = scoring.make_batch(samples, "right", False)
        mask = batch.inputs["attention_mask"] * (batch.inputs["input_ids"] != token)
        positions = {} if counts else {"position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}
        return scoring.Batch({**batch.inputs, "attention_mask": mask, **positions}, batch.places)

    for counts, text in ((True, "masked"), (False, "masked, and its positions are not counted")):
        yield Variant(
            f"mask-from-tokens:{'positions' if counts else 'no-positions'}",
            f"each token {token}, the padding token, is {text}: it occurs in prompts or responses",
            "build the attention mask from lengths, not by comparing tokens with pad_token_id",
            partial(context.score_batches, partial(make, counts=counts)),
        )


def _make_attended(layout: Any, passes_positions: bool) -> Callable[[Sequence[Sample]], scoring.Batch]:
    def make(samples: Sequence[Sample]) -> scoring.Batch:
        batch = scoring.make_batch(samples, layout, passes_positions)
        mask = torch.ones_like(batch.inputs["attention_mask"])
        return scoring.Batch({**batch.inputs, "attention_mask": mask}, batch.places)

    return make


def _make_full(samples: Sequence[Sample]) -> scoring.Batch:
    batch = scoring.make_batch(samples, "right", False)
    mask = torch.log(batch.inputs["attention_mask"].double())[:, None, None]
    rows, width = batch.inputs["input_ids"].shape
    return scoring.Batch({**batch.inputs, "attention_mask": mask.expand(rows, 1, width, width)}, batch.places)


def _make_counted(samples: Sequence[Sample]) -> scoring.Batch:
    lengths = [len(sample.prompt) for sample in samples]
    return _make_later(samples, [max(lengths) - length for length in lengths])


def _make_later(samples: Sequence[Sample], offsets: Sequence[int]) -> scoring.Batch:
    batch = scoring.make_batch(samples, "right", True)
    positions = batch.inputs["position_ids"] + torch.tensor(offsets)[:, None]
    return scoring.Batch({**batch.inputs, "position_ids": positions}, batch.places)


def _make_leaking(samples: Sequence[Sample]) -> scoring.Batch:
    batch = scoring.pack(samples)
    mask = torch.ones_like(batch.inputs["input_ids"])  # with a mask, transformers does not look for documents
    return scoring.Batch({**batch.inputs, "attention_mask": mask}, batch.places)


def _iter_inputs(context: Context) -> Iterator[Variant]:
    """Yield variants of the prompts that a side may have received."""
    begin = read_config(context.folder).bos_token_id
    samples = context.samples
    skipped = int(isinstance(begin, int) and all(sample.prompt[:1] == (begin,) for sample in samples))
    if skipped:
        doubled = [replace(sample, prompt=(begin, *sample.prompt)) for sample in samples]
        without = [replace(sample, prompt=sample.prompt[1:]) for sample in samples if len(sample.prompt) > 1]
        yield Variant(
            "bos-doubled",
            "prompts begin with the BOS token twice",
            "tokenise prompts with add_special_tokens=False if the chat template writes the BOS token",
            lambda: context.score(samples=doubled),
        )
        if len(without) == len(samples):
            yield Variant(
                "bos-missing",
                "prompts do not begin with the BOS token",
                "keep the BOS token in the prompts",
                lambda: context.score(samples=without),
            )
    yield Variant(
        "prompt-doubled",
        "each prompt is given twice",
        "apply the chat template once",
        lambda: context.score(samples=[replace(own, prompt=own.prompt + own.prompt[skipped:]) for own in samples]),
    )
    for count in ENDINGS:
        for name, text, is_doubled in (("doubled", "given twice", True), ("missing", "left out", False)):
            changed = [
                replace(own, prompt=own.prompt + own.prompt[-count:] if is_doubled else own.prompt[:-count])
                for own in samples
            ]
            if all(own.prompt for own in changed):
                yield Variant(
                    f"prompt-end-{name}:{count}",
                    f"the last {count} tokens of each prompt are {text}",
                    "apply the chat template once, and let it add the generation prompt on both sides",
                    partial(context.score, samples=changed),
                )


def _iter_shifts(context: Context) -> Iterator[Variant]:
    """Yield logits of neighbouring positions instead of those that predict the tokens."""

    def score_later() -> list[Tensor]:
        longer = [replace(own, response=(*own.response, own.response[-1])) for own in context.samples]
        return [logits[1:] for logits in context.score(samples=longer)]

    def score_earlier() -> list[Tensor]:
        tokens = [(own.prompt, own.response) for own in context.samples]
        return context.score(
            samples=[Sample(prompt[:-1], (*prompt[-1:], *response[:-1])) for prompt, response in tokens]
        )

    for place, compute in (("after", score_later), ("before", score_earlier)):
        yield Variant(
            f"logits-shifted:{place}",
            f"each token is looked up in the logits of the place {place} the one that predicts it",
            "shift labels against logits by one position, exactly once",
            compute,
        )


def _iter_truncations(context: Context, off: Sequence[bool]) -> Iterator[Variant]:
    """Yield truncated prompts, if only prompts above some length are wrong, which bounds the length of truncation."""
    lengths = [len(sample.prompt) for sample in context.samples]
    shortest = min((length for length, is_off in zip(lengths, off, strict=True) if is_off), default=0)
    kept = max((length for length, is_off in zip(lengths, off, strict=True) if not is_off), default=1)
    for size in range(kept, shortest):
        for name, text, cut in (
            ("left", "last", lambda prompt, size: prompt[-size:]),
            ("right", "first", lambda prompt, size: prompt[:size]),
            ("middle", "first and last", lambda prompt, size: prompt[: size // 2] + prompt[size // 2 - size :]),
        ):

            def compute(size: int = size, cut: Callable[[Any, int], Any] = cut) -> list[Tensor]:
                return context.score(
                    samples=[
                        replace(own, prompt=cut(own.prompt, size) if len(own.prompt) > size else own.prompt)
                        for own in context.samples
                    ]
                )

            yield Variant(
                f"prompt-truncated:{name}:{size}",
                f"prompts are truncated to their {text} {size} tokens",
                "raise max_model_len or the prompt length, or drop prompts that are too long",
                compute,
            )


def _iter_other_prompts(context: Context, observed: Tensor) -> Iterator[Variant]:
    """Yield prompts of other rows, whole or only their first block: each sample has the one that fits it best."""
    if is_large(context):
        return
    values = split(observed, context.samples)

    def measure(place: int, logits: Tensor) -> float:
        return rms(values[place] - gather(logits / context.rollout.temperature, context.samples[place].response))

    def compute(block: int | None) -> list[Tensor]:
        best = list(context.exact)
        for donor in dict.fromkeys(own.prompt for own in context.samples):
            changed = [
                own
                if block and min(len(donor), len(own.prompt)) <= block
                else replace(own, prompt=donor[:block] + rest)
                for own in context.samples
                for rest in [own.prompt[block:] if block else ()]
            ]
            best = [
                min(pair, key=partial(measure, place))
                for place, pair in enumerate(zip(best, context.score(samples=changed), strict=True))
            ]
        return best

    yield Variant(
        "prompts-mixed",
        "responses follow the prompts of other rows",
        "keep each response with its prompt (repeat prompts in the order in which the engine answers them)",
        partial(compute, None),
    )
    yield Variant(
        "prefix-of-another-prompt",
        f"the first {CACHE_BLOCK} tokens of prompts are those of another prompt: a block of a prefix cache is reused",
        "switch prefix caching off (vLLM: enable_prefix_caching=False), or correct the key of its blocks",
        partial(compute, CACHE_BLOCK),
    )


def _iter_configurations(context: Context) -> Iterator[Variant]:
    """Yield variants of the model's class without one of its features, or with another value of it."""
    config = read_config(context.folder)
    changes: list[tuple[str, str, str, Any]] = []
    changes += _list_rope_changes(config)
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if window:
        full = ["full_attention" if name == "sliding_attention" else name for name in types or ()]
        if types:
            changes.append(("window", f"the window of {window} tokens is not applied", "layer_types", full))
            moved = [*types[1:], types[0]]
            changes.append(
                ("window", f"the window of {window} tokens is applied in other layers", "layer_types", moved)
            )
        else:
            changes.append(("window", f"the window of {window} tokens is not applied", "sliding_window", None))
        changes += [
            ("window", f"the window is {window + step} tokens instead of {window}", "sliding_window", window + step)
            for step in (1, -1)
        ]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for key, scale in (("query_pre_attn_scalar", head_dim), ("attention_multiplier", head_dim**-0.5)):
        if getattr(config, key, None):
            changes.append(("softmax-scale", "attention scores are divided by the square root of head_dim", key, scale))
    layers = getattr(config, "num_hidden_layers", 1)
    changes.append(("layers", "the last layer is skipped", "num_hidden_layers", layers - 1))
    changes += islice(_iter_other_values(context.model, config), TESTED_KEYS if is_large(context) else None)
    for name, message, key, value in changes:
        yield Variant(
            f"{name}:{key}={json.dumps(value)}",
            message,
            f"use the model's own {key} on both sides",
            partial(context.score_other, ((key, json.dumps(value)),)),
        )


def _list_rope_changes(config: Any) -> list[tuple[str, str, str, Any]]:
    """Return changes of a configuration's RoPE: the name, its text, the key and its value."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type != "default":
        return [("rope-scaling", f"RoPE is not scaled ({rope_type} is ignored)", "rope_scaling", None)]
    base = parameters.get("rope_theta", getattr(config, "rope_theta", None))
    key = "rope_scaling" if hasattr(config, "rope_parameters") else "rope_theta"
    changes: list[tuple[str, str, str, Any]] = [
        (
            "rope-base",
            f"the base of RoPE is {other:g} instead of {base:g}",
            key,
            {"rope_theta": other} if key == "rope_scaling" else other,
        )
        for other in ROPE_BASES
        if base and base != other
    ]
    if "partial_rotary_factor" in parameters:
        change = {"partial_rotary_factor": 1.0, "rope_theta": base}
        changes.append(("rope-share", "RoPE rotates all of head_dim", "rope_scaling", change))
    lengths = dict.fromkeys((getattr(config, "max_position_embeddings", TRAINED_LENGTH), TRAINED_LENGTH))
    for factor in ROPE_FACTORS:
        changes.append(
            (
                "rope-scaling",
                f"RoPE is scaled linearly by {factor:g}",
                "rope_scaling",
                {"rope_type": "linear", "factor": factor},
            )
        )
        changes += [
            (
                "rope-scaling",
                f"RoPE is scaled by YaRN, factor {factor:g} over {length} positions",
                "rope_scaling",
                {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length},
            )
            for length in lengths
        ]
    return changes


def _iter_other_values(model: Any, config: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Yield the keys that the model's code reads, each removed or with its class's default; no shape changes."""
    source = inspect.getsource(sys.modules[type(model).__module__])
    defaults = type(config)().to_dict()
    shapes = _list_shapes(config)
    keys = [key for key in config.to_dict() if re.search(rf"config\.{key}\b", source)]
    for is_default in (False, True):
        for key in keys:
            own, default = getattr(config, key, None), defaults.get(key)
            others: list[Any]
            if isinstance(own, bool):
                others = [] if is_default else [not own]
            elif isinstance(own, (int, float)):
                others = [default, *(EPSILONS if "eps" in key else ())] if is_default else [None, type(own)(1)]
            elif own in GELUS:
                others = [] if is_default else list(GELUS)
            else:
                others = [default] if is_default and isinstance(default, (int, float, str)) else []
            for other in others:
                if other != own and _list_shapes(config, key, other) == shapes:
                    yield "configuration", f"{key} is {json.dumps(other)} instead of {json.dumps(own)}", key, other


def _list_shapes(config: Any, key: str = "", value: Any = None) -> dict[str, Any]:
    """Return the shapes of a configuration's weights, with another value of a key; none if it cannot be built."""
    import transformers

    make_model: Any = transformers.AutoModelForCausalLM.from_config
    try:
        twin = type(config).from_dict(config.to_dict())
        if key:
            apply_override(twin, key, value)
        with torch.device("meta"):
            state = make_model(twin).state_dict()
    except Exception:  # a class may refuse a value with any exception
        return {}
    return {name: tensor.shape for name, tensor in state.items()}


def _iter_weights(context: Context) -> Iterator[Variant]:
    """Yield variants without some of the model's weights, or with one weight in the position of another."""
    remedy = "load every parameter of the model, and sync all of them"

    def tie(model: Any) -> None:
        model.get_output_embeddings().weight.copy_(model.get_input_embeddings().weight)

    named = context.model.named_parameters()
    for group in dict.fromkeys(_name_group(name) for name, own in named if own.dim() == 1):
        for value in (0.0, NO_SINK) if group == "sinks" else (1.0, 0.0):

            def fill(model: Any, group: str = group, value: float = value) -> None:
                for name, parameter in model.named_parameters():
                    if parameter.dim() == 1 and _name_group(name) == group:
                        parameter.fill_(value)

            yield Variant(
                f"parameters:{group}={value:g}",
                "attention sinks are ignored" if value == NO_SINK else f"the parameters {group} are {value:g}",
                remedy,
                partial(context.score, change=fill),
            )
    for step, text in ((-1, "before"), (1, "after")):

        def move(model: Any, step: int = step) -> None:
            layers = model.get_decoder().layers
            kept = [{name: own.clone() for name, own in layer.state_dict().items()} for layer in layers]
            for place, layer in enumerate(layers):
                layer.load_state_dict(kept[min(max(place + step, 0), len(layers) - 1)])

        yield Variant(
            f"layers-shifted:{step}",
            f"each layer has the weights of the layer {text} it",
            "correct the layer numbers in the names of the synchronised parameters",
            partial(context.score, change=move),
        )
    if not getattr(read_config(context.folder), "tie_word_embeddings", False):
        yield Variant(
            "tied-embeddings",
            "lm_head is the input embedding, which this model does not tie",
            "set tie_word_embeddings to false on both sides, and sync lm_head",
            lambda: context.score(change=tie),
        )


def _name_group(name: str) -> str:
    """Return the end of a parameter's name, the same for all biases and for the norms of queries and keys."""
    *_, module, own = name.split(".")
    if own == "bias":
        return own
    return re.sub(r"^[qk]_", "query_key_", f"{module}.{own}") if own == "weight" else own


def _iter_modules(context: Context) -> Iterator[Variant]:
    """Yield variants in which one kind of module adds nothing, or returns its input."""
    kinds: dict[str, list[Any]] = {}
    for name, module in context.model.named_modules():
        inner = re.split(r"\.\d+\.", name, maxsplit=1)[1:]
        if inner and not isinstance(module, torch.nn.Linear) and any(True for _ in module.parameters()):
            kinds.setdefault(re.sub(r"\d+", "*", inner[0]), []).append(module)

    def leave_out(module: Any, given: Any, output: Any) -> Any:
        return torch.zeros_like(output) if torch.is_tensor(output) else (torch.zeros_like(output[0]), *output[1:])

    def pass_on(module: Any, given: Any, output: Any) -> Any:
        if not given or given[0].shape != output.shape:
            raise ValueError("its output has another shape than its input")
        return given[0]

    def register(model: Any, modules: Sequence[Any], hook: Callable[..., Any]) -> list[Any]:
        return [module.register_forward_hook(hook) for module in modules]

    for kind, modules in kinds.items():
        for hook, text in ((leave_out, "are left out"), (pass_on, "return their input")):
            yield Variant(
                f"modules:{kind}:{hook.__name__}",
                f"the modules {kind} {text}",
                f"use a release of the engine that computes {kind}, or let both sides leave it out",
                partial(context.score, partial(register, modules=modules, hook=hook)),
            )


def _iter_orders(context: Context) -> Iterator[Variant]:
    """Yield other orders of the rows of queries and keys: of heads, and of the pairs that RoPE rotates."""
    config = read_config(context.folder)
    heads, size = config.num_attention_heads, getattr(config, "head_dim", None) or 0
    size = size or config.hidden_size // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    whole = list(range(size))

    def change(model: Any, order: Sequence[int], inner: Sequence[int]) -> None:
        for module in [own for own in model.modules() if hasattr(own, "q_proj") and hasattr(own, "k_proj")]:
            for name in ("q_proj", "k_proj", "q_norm", "k_norm"):
                for own in getattr(module, name, torch.nn.Identity()).parameters():
                    parts = own.view(-1, size, *own.shape[1:])
                    rows = order if len(parts) == heads and name[0] == "q" else range(len(parts))
                    own.copy_(parts[list(rows)][:, inner].reshape(own.shape))
            weight = module.o_proj.weight
            weight.copy_(weight.view(len(weight), heads, size)[:, list(order)].reshape(weight.shape))

    even = [*whole[::2], *whole[1::2]]
    heads_order = sorted(range(heads), key=lambda head: (head % shared, head))
    for name, text, order, inner in (
        ("heads-shared", "query heads take turns in sharing a key head, instead of neighbours", heads_order, whole),
        ("rope-pairs", "RoPE rotates neighbours instead of halves of head_dim", range(heads), even),
        (
            "rope-pairs",
            "RoPE rotates halves of head_dim instead of neighbours",
            range(heads),
            [even.index(i) for i in whole],
        ),
    ):
        yield Variant(
            f"{name}:{text[:25]}",
            text,
            "write the rows of q_proj and k_proj in the order that the engine's class expects",
            partial(context.score, partial(change, order=order, inner=inner)),
        )


def _iter_quantised(context: Context) -> Iterator[Variant]:
    """Yield variants with a cache or weights of fewer bits."""
    from transformers import DynamicCache

    cache_class: Any = DynamicCache

    class Fp8Cache(cache_class):  # type: ignore[misc]
        """Stores keys and values as an engine's FP8 cache does, without scales."""

        def __init__(self, keep: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.keep = keep

        def update(self, keys: Tensor, values: Tensor, *arguments: Any, **options: Any) -> Any:
            keys, values = map(self.keep, (keys, values))
            return super().update(keys, values, *arguments, **options)

    types = (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2))
    for (name, dtype), (keep, how) in product(types, ((_round, ""), (_cut, ", rounded towards zero"))):
        yield Variant(
            f"fp8-cache:{name}{'-cut' if how else ''}",
            f"keys and values are kept in FP8 ({name}{how})",
            "keep the engine's KV cache in the model's dtype (vLLM: kv_cache_dtype=auto)",
            partial(context.score_cached, partial(Fp8Cache, partial(keep, dtype=dtype))),
            ("engine",),
            QUANTISED_SHARE,
        )
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):

        def shorten(model: Any, dtype: torch.dtype = dtype) -> None:
            for parameter in model.parameters():
                parameter.copy_(_round(parameter, dtype))

        yield Variant(
            f"weights-in-{name}",
            f"the weights are rounded to {name}",
            "load the weights in the same dtype on both sides",
            partial(context.score, change=shorten),
        )
    for name, text, levels in (("fp8", "FP8", 0), ("int8", "8-bit integers", 127), ("int4", "4-bit integers", 7)):

        def quantise(model: Any, levels: int = levels) -> None:
            head = model.get_output_embeddings()
            for module in model.modules():
                if isinstance(module, torch.nn.Linear) and module is not head:
                    scale = module.weight.abs().amax(1, keepdim=True) / (levels or FP8_MAX)
                    scaled = module.weight / scale
                    module.weight.copy_((scaled.round() if levels else _round(scaled, torch.float8_e4m3fn)) * scale)

        yield Variant(
            f"weights-in-{name}",
            f"the weights of linear layers are quantised to {text}, one scale for each row",
            "load unquantised weights in the engine, or correct for it (truncated importance sampling)",
            partial(context.score, change=quantise),
            ("engine",),
            QUANTISED_SHARE,
        )


def is_large(context: Context) -> bool:
    """Whether the model is too large for exact values in float64, and for many hypotheses."""
    return bool(next(context.model.parameters()).dtype != torch.float64)


def _round(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.float().to(dtype).to(tensor.dtype)


def _cut(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values rounded towards zero, as vllm 0.32.0 does on a CPU: the bits of the next smaller number, less 1."""
    rounded = tensor.float().to(dtype)
    bits = rounded.view(torch.uint8) - (rounded.float().abs() > tensor.float().abs()).to(torch.uint8)
    return bits.view(dtype).to(tensor.dtype)
