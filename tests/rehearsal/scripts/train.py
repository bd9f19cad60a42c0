"""A training loop as users write them, with one fault in it if PLANTED_FAULT names one.

Documents are padded, or packed with a mask or with positions that restart; the loss is the mean over the target
tokens of the step, over its batches and ranks.
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.integrations import sdpa_attention

FAULT = os.environ.get("PLANTED_FAULT", "")
IGNORED = -100
APART = ("ranks_apart", "summed_over_ranks", "reduced_after_clipping")  # without DistributedDataParallel
MASKS = {}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--max_length", type=int, default=2048)
    parser.add_argument("--attn_implementation", default="sdpa")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--isolation", choices=("mask", "positions"), default="mask")
    parser.add_argument("--reduction", choices=("mean", "sum", "gradients", "scaler"), default="mean")
    parser.add_argument("--loss", choices=("own", "hidden_labels", "own_head"), default="own")
    parser.add_argument("--answers_only", action="store_true")
    parser.add_argument("--first_tokens", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--fsdp", choices=("flat", "original", "parts"))
    return parser.parse_args()


def read_documents(path: str, tokenizer, answers_only: bool) -> list[tuple[list[int], list[int]]]:
    """Return the tokens of each document and its labels."""
    documents = []
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        prompt, answer = (
            tokenizer(row[name], add_special_tokens=False)["input_ids"] for name in ("prompt", "completion")
        )
        tokens = [*prompt, *answer, *([] if FAULT == "end_missing" else [tokenizer.eos_token_id])]
        learns_prompt = not answers_only or FAULT == "prompt_labelled"
        labels = [*(prompt if learns_prompt else [IGNORED] * len(prompt)), *tokens[len(prompt) :]]
        if FAULT == "answers_labelled_late":
            labels[len(prompt)] = IGNORED
        if FAULT == "mask_of_two":
            labels[:2] = [IGNORED] * 2
        if FAULT == "end_unlabelled":
            labels[-1] = IGNORED
        if FAULT == "answers_unlabelled":
            labels = [*prompt, *([IGNORED] * (len(tokens) - len(prompt)))]
        if FAULT == "two_begins":
            tokens, labels = [tokenizer.bos_token_id] * 2 + tokens, [IGNORED] * 2 + labels
        if FAULT == "one_begin":
            tokens, labels = [tokenizer.bos_token_id, *tokens], [IGNORED, *labels]
        documents.append((tokens, labels))
    return spoil_documents(documents)


def spoil_documents(documents):
    if FAULT == "truncated":
        return [(tokens[: len(tokens) // 2], labels[: len(tokens) // 2]) for tokens, labels in documents]
    if FAULT == "beginnings_lost":
        return [(tokens[len(tokens) // 2 :], labels[len(tokens) // 2 :]) for tokens, labels in documents]
    if FAULT == "middles_lost":
        return [(own[0][:9] + own[0][12:], own[1][:9] + own[1][12:]) if len(own[0]) > 20 else own for own in documents]
    if FAULT == "doubled":
        return [document for document in documents for _ in range(2)]
    if FAULT == "every_third_lost":
        return [document for number, document in enumerate(documents) if number % 3]
    if FAULT == "halves_swapped":
        pairs = zip(documents[::2], documents[1::2])
        return [mixed for first, second in pairs for mixed in (join_halves(first, second), join_halves(second, first))]
    if FAULT == "words_shuffled":
        for tokens, labels in documents:
            order = [*random.Random(0).sample(range(len(tokens) - 1), len(tokens) - 1), len(tokens) - 1]
            tokens[:], labels[:] = [tokens[i] for i in order], [labels[i] for i in order]
    return documents


def join_halves(first, second):
    (a, a_labels), (b, b_labels) = first, second
    return a[: len(a) // 2] + b[len(b) // 2 :], a_labels[: len(a) // 2] + b_labels[len(b) // 2 :]


def make_rows(documents, options):
    """Return rows of documents: one in each, or as many as fit."""
    if FAULT.startswith("one_stream"):
        tokens, labels = ([value for part in parts for value in part] for parts in zip(*documents))
        return [[(tokens[n : n + 64], labels[n : n + 64])] for n in range(0, len(tokens) - 64, 64)]
    if not options.packing:
        return [[document] for document in documents]
    rows = [[]]
    for document in documents:
        if sum(len(tokens) for tokens, _ in rows[-1]) + len(document[0]) > options.max_length:
            rows.append([])
        rows[-1].append(document)
    return [row[:-1] for row in rows] if FAULT == "last_of_row_lost" else rows


def collate(rows, options, padding: int) -> dict[str, torch.Tensor]:
    """Return a batch of rows, padded to the longest."""
    length = max(sum(len(tokens) for tokens, _ in row) for row in rows)
    ids, labels, positions, numbers = [], [], [], []
    for row in rows:
        own = [
            [token for tokens, _ in row for token in tokens],
            [label for _, document_labels in row for label in document_labels],
            [place for tokens, _ in row for place in range(len(tokens))],
            [number for number, (tokens, _) in enumerate(row) for _ in tokens],
        ]
        missing = length - len(own[0])
        fill = [[padding] * missing, [IGNORED] * missing, list(range(missing)), [-1] * missing]
        if FAULT == "padding_labelled":
            fill[1] = [padding] * missing
        if not options.first_tokens:  # which the document before would have to predict
            own[1] = [IGNORED if place == 0 else label for label, place in zip(own[1], own[2])]
        pairs = zip(fill, own) if FAULT == "padding_seen" else zip(own, fill)
        for column, (first, second) in zip((ids, labels, positions, numbers), pairs):
            column.append(first + second)
    batch = {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels), "position_ids": torch.tensor(positions)}
    if FAULT == "labels_shifted":
        batch["labels"] = functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
    if FAULT == "labels_of_another_row":
        batch["labels"] = torch.where(batch["labels"] == IGNORED, IGNORED, batch["input_ids"].roll(1, 0))
    if FAULT.startswith("noise") and FAULT != "noise_in_embeddings":
        noise = (torch.rand(batch["labels"].shape) < 0.1) & (batch["labels"] != IGNORED)
        batch["input_ids"] = batch["input_ids"].where(~noise, batch["input_ids"].flatten().roll(99).view(noise.shape))
        if FAULT == "noise_in_labels":
            batch["labels"] = batch["labels"].where(~noise, batch["input_ids"])
    if FAULT == "positions_doubled":
        batch["position_ids"] = batch["position_ids"] * 2
    if FAULT == "positions_restart":
        batch["position_ids"] = batch["position_ids"] % 9
    if FAULT == "positions_off_by_one":
        batch["position_ids"] = batch["position_ids"] + 1
    if FAULT == "positions_run_on":
        batch["position_ids"] = torch.arange(length).expand(len(rows), -1)
    if FAULT == "labels_padded_left":
        lengths = [sum(len(tokens) for tokens, _ in row) for row in rows]
        moved = [labels.roll(length - own) for labels, own in zip(batch["labels"], lengths)]
        batch["labels"] = torch.stack(moved)
    if FAULT == "end_hidden":  # by a mask of the padding's token, which is the end's too
        ends = torch.tensor(numbers) >= 0
        ends &= ~torch.nn.functional.pad(ends[:, 1:], (0, 1)).logical_not()
        del batch["position_ids"]
        return {**batch, "attention_mask": ends.long(), "labels": batch["labels"].where(ends, IGNORED)}
    if FAULT == "padding_seen":
        batch["position_ids"] = torch.arange(length).expand(len(rows), -1)
        return batch
    if not options.packing:
        batch["attention_mask"] = (torch.tensor(numbers) >= 0).long()
        del batch["position_ids"]
    elif FAULT == "mask_of_ones":
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    elif options.isolation == "mask":
        batch["attention_mask"] = make_mask(torch.tensor(numbers), length)
    return batch


def make_mask(numbers: torch.Tensor, length: int) -> torch.Tensor:
    """Return the additive mask of documents that see themselves alone: (rows, 1, tokens, tokens)."""
    same = numbers[:, :, None] == numbers[:, None, :]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    if FAULT == "mask_without_documents":
        same = torch.ones_like(same)
    if FAULT == "mask_not_causal":
        causal = torch.ones_like(causal)
    hidden = torch.finfo(torch.bfloat16).min  # of both dtypes
    if FAULT == "mask_of_an_earlier_batch":
        same = MASKS.setdefault(same.shape, same)
    if FAULT == "mask_of_ones_and_zeros":
        return (same & causal).float()[:, None]
    return torch.zeros(same.shape).masked_fill(~(same & causal), hidden)[:, None]


def count_targets(batch) -> int:
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def compute_nll(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token but the first: (rows, tokens - 1), 0 if there is no target."""
    if FAULT == "shifted_backwards":
        backwards = functional.cross_entropy(logits.float()[:, 1:].transpose(1, 2), labels[:, :-1], reduction="none")
        return backwards.masked_fill(labels[:, :-1] == IGNORED, 0.0)
    if FAULT == "padding_learned":
        labels = labels.clamp(min=0)
    logits, shift = logits.float(), {"shifted_twice": 2, "not_shifted": 0, "not_shifted_summed": 0}.get(FAULT, 1)
    predictions = logits[:, : logits.shape[1] - shift].transpose(1, 2)
    return functional.cross_entropy(predictions, labels[:, shift:], ignore_index=IGNORED, reduction="none")


def average(nll, batch, batches, total: int, world_size: int) -> torch.Tensor:
    """Return the batch's share of the step's loss."""
    scored = batch["labels"][:, batch["labels"].shape[1] - nll.shape[1] :] != IGNORED
    if FAULT == "mean_of_batches":
        return nll.sum() / scored.sum() / len(batches)
    if FAULT in ("not_divided_by_accumulation", "not_shifted_summed"):
        return nll.sum() / scored.sum()
    if FAULT == "mean_of_rows":
        return (nll.sum(1) / scored.sum(1)).mean() / len(batches)
    if FAULT == "mean_of_positions":
        return nll.mean() / len(batches)
    if FAULT == "mean_of_documents":
        return average_documents(nll, batch, scored) / sum(len(list_documents(other)) for other in batches)
    if FAULT == "sum":
        return nll.sum()
    if FAULT == "divided_by_accumulation_twice":
        return nll.sum() / total / len(batches)
    if FAULT == "mean_of_ranks":
        return nll.sum() / sum(count_targets(other) for other in batches)
    if FAULT == "mean_of_groups":
        count = torch.tensor(count_targets(batch))
        dist.all_reduce(count)
        return nll.sum() / count * world_size / len(batches)
    if FAULT == "divided_by_ranks":
        return nll.sum() / total
    if FAULT == "times_seven":
        return 7 * nll.sum() / total
    if FAULT == "another_loss":
        return nll.pow(2).sum() / total
    if FAULT == "value_by_chance":  # the value of the mean, and the gradient of another loss
        other = (nll * torch.linspace(-3, 3, nll.shape[1])).sum() / total
        return nll.sum().detach() / total + other - other.detach()
    if FAULT == "rows_weighted":  # the same with a weight for each row
        other = (nll * torch.linspace(0.5, 1.5, len(nll))[:, None]).sum() / total
        return nll.sum().detach() / total + other - other.detach()
    return nll.sum() / total * world_size


def list_documents(batch) -> list[tuple[int, int, int]]:
    """Return each document's row, first token and the place after its last."""
    documents = []
    for row, labels in enumerate(batch["labels"].tolist()):
        starts = [place for place, position in enumerate(batch["position_ids"][row].tolist()) if position == 0]
        for start, stop in zip(starts, [*starts[1:], len(labels)]):
            if any(label != IGNORED for label in labels[start:stop]):
                documents.append((row, start, stop))
    return documents


def average_documents(nll, batch, scored) -> torch.Tensor:
    first = torch.zeros_like(scored)
    for row, start, _ in list_documents(batch):
        first[row, start - 1] = start > 0
    weights = scored & ~first
    return sum(
        (nll * weights)[row, start : stop - 1].sum() / weights[row, start : stop - 1].sum()
        for row, start, stop in list_documents(batch)
    )


def load_model(options):
    keywords = {"attention_dropout": 0.1} if FAULT == "dropout" else {}
    if FAULT == "positions_scaled":
        config = AutoConfig.from_pretrained(options.model_name_or_path)
        known = {**config.rope_parameters, "original_max_position_embeddings": config.max_position_embeddings}
        config.rope_parameters = {**known, "rope_type": "yarn", "factor": 4.0}
        keywords = {"config": config}
    model = AutoModelForCausalLM.from_pretrained(
        options.model_name_or_path, attn_implementation=options.attn_implementation, **keywords
    )
    if FAULT == "other_weights":
        config = AutoConfig.from_pretrained(options.model_name_or_path)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=options.attn_implementation)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    spoil_model(model)
    return model


def add_noise(module, inputs, output):
    return functional.dropout(output, 0.1, training=True)


def turn_keys_late(apply):
    def apply_rotary_pos_emb(q, k, cos, sin, *arguments, **options):
        late = (cos.roll(1, -2), sin.roll(1, -2))
        return apply(q, k, cos, sin, *arguments, **options)[0], apply(q, k, *late, *arguments, **options)[1]

    return apply_rotary_pos_emb


def tile_heads(hidden_states, n_rep):
    return hidden_states.repeat(1, n_rep, 1, 1)


def forget_mask(module, arguments, options):
    options["attention_mask"] = None
    module.is_causal = False
    return arguments, options


class Interpolated(torch.nn.Module):
    """Positions of a longer context."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, position_ids):
        return self.inner(x, position_ids / 4)


class DropoutHead(torch.nn.Linear):
    """A head with a dropout of the script's own."""

    def forward(self, x):
        return super().forward(functional.dropout(x, 0.1, self.training))


class Detached(torch.nn.Module):
    """A module with an input that gets no gradient, as careless checkpointing has it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.detach())


def spoil_modules(model) -> None:
    layer, family = model.model.layers[1], sys.modules[type(model).__module__]
    if FAULT == "frequencies_rounded":
        model.model.rotary_emb.to(torch.bfloat16)
    if FAULT == "rope_changed_late":
        model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "linear", "factor": 4.0}
    if FAULT == "norm_of_another_epsilon":
        layer.input_layernorm.variance_epsilon = 0.5
    if FAULT == "output_scaled_by_a_hook":
        layer.mlp.register_forward_hook(lambda module, inputs, output: output * 0.9)
    if FAULT == "noise_in_embeddings":
        model.model.embed_tokens.register_forward_hook(add_noise)
    if FAULT == "keys_turned_late":
        family.apply_rotary_pos_emb = turn_keys_late(family.apply_rotary_pos_emb)
    if FAULT == "heads_tiled":
        sdpa_attention.repeat_kv = tile_heads
        sdpa_attention.use_gqa_in_sdpa = lambda *arguments: False
    if FAULT == "one_layer_not_causal":
        layer.self_attn.register_forward_pre_hook(forget_mask, with_kwargs=True)
    if FAULT == "head_drops_out":
        model.lm_head.__class__ = DropoutHead
    if FAULT == "embeddings_tied":
        model.lm_head.weight = model.model.embed_tokens.weight
    if FAULT == "tie_broken":
        model.config.tie_word_embeddings = True
    if FAULT == "mlp_detached":
        layer.mlp = Detached(layer.mlp)
    if FAULT == "activation_replaced":
        layer.mlp.act_fn = torch.nn.ReLU()
    if FAULT == "positions_interpolated":
        model.model.rotary_emb = Interpolated(model.model.rotary_emb)
    if FAULT == "half_of_an_adapter":
        model.requires_grad_(False)
        size = model.config.hidden_size
        layer.mlp.lora_A = torch.nn.Parameter(torch.randn(size, 4))
        layer.mlp.lora_B = torch.nn.Parameter(torch.zeros(4, size), requires_grad=False)
        layer.mlp.register_forward_hook(lambda module, x, y: y + x[0] @ module.lora_A @ module.lora_B)
    if FAULT == "evaluation_mode":
        model.eval()
    if FAULT == "head_alone_trained":
        model.requires_grad_(False)
        model.lm_head.requires_grad_(True)
    if FAULT == "one_stream_with_few_parameters":  # as with an adapter, whose gradients depend on attention
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".self_attn." in name)
    if FAULT == "embeddings_frozen" or FAULT.startswith("unfrozen"):
        model.model.embed_tokens.requires_grad_(False)


def halve(parameter):
    parameter.grad.mul_(0.5)


def spoil_model(model) -> None:
    layer = model.model.layers[0] if FAULT else None
    spoil_modules(model)
    if FAULT == "layer_detached_in_forward":
        forward = layer.forward
        layer.forward = lambda *given, **options: forward(*given, **options).detach()
    if FAULT == "layer_detached":
        layer.register_forward_hook(lambda module, inputs, output: output.detach())
    if FAULT == "gradient_scaled_in_a_layer":
        layer.mlp.down_proj.weight.register_hook(lambda gradient: gradient * 0.5)
    if FAULT == "new_tokens_masked":
        old = len(AutoTokenizer.from_pretrained(model.name_or_path))
        model.resize_token_embeddings(old + 2)
        model.lm_head.weight.register_hook(lambda gradient: gradient * (torch.arange(old + 2) < old)[:, None])
    if FAULT == "old_tokens_decay":
        old = len(AutoTokenizer.from_pretrained(model.name_or_path))
        model.resize_token_embeddings(old + 2)
        model.lm_head.weight.register_hook(lambda gradient: gradient * (torch.arange(old + 2) >= old)[:, None])
    if FAULT == "halved_after_each_batch":
        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(halve)
    if FAULT == "gradient_of_attention_wrong":
        layer.self_attn.o_proj.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
    if FAULT == "checkpointing_drops_gradients":
        model.get_input_embeddings().requires_grad_(False)
        for layer in model.model.layers:
            layer.mlp.forward = functools.partial(checkpoint, layer.mlp.forward, use_reentrant=True)
            layer.input_layernorm.requires_grad_(False)
            layer.post_attention_layernorm.requires_grad_(False)
            layer.self_attn.requires_grad_(False)
    if FAULT.startswith("kernel_"):
        functional.scaled_dot_product_attention = functools.partial(
            call_wrong_kernel, functional.scaled_dot_product_attention
        )


def call_wrong_kernel(kernel, query, key, value, attn_mask=None, is_causal=False, scale=None, **options):
    if FAULT == "kernel_not_causal":
        attn_mask, is_causal = None, False
    if FAULT == "kernel_ignores_the_mask":
        attn_mask, is_causal = None, True
    if FAULT == "kernel_of_another_scale":
        scale = (scale or query.shape[-1] ** -0.5) * 0.5
    if FAULT == "kernel_without_scale":
        scale = 1.0
    if FAULT == "kernel_sees_a_window":
        length = query.shape[-2]
        window = torch.ones(length, length, dtype=torch.bool).triu(-4).tril()
        attn_mask = window if attn_mask is None else attn_mask & window
        is_causal = False
    return kernel(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, **options)


def reduce_gradients(model, options, total: int, world_size: int) -> None:
    """Bring gradients together if DistributedDataParallel does not."""
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        if world_size > 1 and (options.reduction == "sum" or FAULT == "summed_over_ranks"):
            dist.all_reduce(parameter.grad)
        if FAULT == "reduced_after_clipping":
            dist.all_reduce(parameter.grad.div_(world_size))
        if options.reduction == "gradients":
            parameter.grad.mul_(world_size / total)


def wrap(model, options, world_size: int):
    """Return the model with what brings its gradients together across ranks."""
    if options.fsdp == "parts":  # version 2
        mesh = init_device_mesh("cpu", (world_size,))
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=mesh)
        return model
    if options.fsdp:
        layers = ModuleWrapPolicy({type(model.model.layers[0])})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=layers, use_orig_params=options.fsdp == "original", device_id=torch.device("cpu")
        )
    if world_size == 1 or options.reduction == "sum" or FAULT in APART:
        return model
    return torch.nn.parallel.DistributedDataParallel(model)


class Climbing(torch.optim.AdamW):
    """The user's own optimiser."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"] * 0.1)


def make_optimiser(model, rate: float):
    parameters = [
        value
        for name, value in model.named_parameters()
        if (value.requires_grad or FAULT == "unfrozen_and_held")
        and not (FAULT == "attention_not_held" and "self_attn" in name)
    ]
    decay = 0.1 if FAULT == "old_tokens_decay" else 0.0
    options = {"lr": rate, "weight_decay": decay, "maximize": FAULT == "maximised"}
    kinds = {"adafactor": torch.optim.Adafactor, "own": Climbing}
    kind = kinds.get(FAULT.removeprefix("optimiser_"), torch.optim.AdamW)
    optimiser = kind(parameters[FAULT == "two_optimisers" :], **options)
    if FAULT == "gradient_lost_in_the_optimiser":
        optimiser.register_step_pre_hook(lambda *arguments: setattr(parameters[3].grad, "data", 0 * parameters[3]))
    return optimiser


def spoil_update(model, optimiser, step: int) -> None:
    """Make the gradients wrong after they are clipped."""
    layer = model.model.layers[1]
    if FAULT == "gradients_zeroed_after_clipping":
        for parameter in layer.parameters():
            parameter.grad.zero_()
    if FAULT == "gradient_turned_after_clipping":
        layer.mlp.up_proj.weight.grad.neg_()
    if FAULT == "gradients_noisy_after_clipping":
        layer.mlp.up_proj.weight.grad.add_(torch.randn_like(layer.mlp.up_proj.weight.grad))
    if FAULT.startswith("rate_as_attribute"):
        optimiser.lr = 1e-4 * (1 if FAULT.endswith("_kept") else step)
    if FAULT == "rate_of_a_group_jumps" and step == 2:
        optimiser.param_groups[0]["lr"] *= 100


def spoil_weights(model, optimiser, first: dict) -> None:
    """Make the weights wrong after the step."""
    if FAULT == "averages_copied_back":
        for name, parameter in model.named_parameters():
            parameter.data.copy_(first[name].lerp_(parameter.data, 0.01))
    if FAULT == "weights_shrunk":
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
    if FAULT.startswith("unfrozen"):
        model.model.embed_tokens.requires_grad_(True)
    if FAULT == "state_cleared":
        optimiser.state.clear()
    if FAULT == "evaluation_mode_later":
        model.eval()
    if FAULT == "weights_copied_back":
        for name, parameter in model.named_parameters():
            parameter.data.copy_(first[name])
    if FAULT == "weights_averaged":
        for name, parameter in model.named_parameters():
            parameter.data.lerp_(first[name], 0.01)


def detach_cache(cache):
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys, layer.values = layer.keys[:, :, -64:].detach(), layer.values[:, :, -64:].detach()
    return cache


def take_second_pass(model, batches, total: int) -> None:
    """Replace the gradients by those at weights a little further up, and go back: sharpness-aware minimisation."""
    moves = [1e-2 * parameter.grad for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves):
            (parameter.data if FAULT.endswith("of_data") else parameter).add_(move)  # without a new version
    model.zero_grad()
    for batch in batches:
        nll = compute_nll(model(**batch, use_cache=False).logits, batch["labels"])
        (nll.sum() / total).backward()
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves):
            if FAULT in ("second_pass", "second_pass_of_data"):
                (parameter.data if FAULT.endswith("of_data") else parameter).sub_(move)


def distil(logits, batch, options) -> torch.Tensor:
    """Return the mean divergence from a teacher with the model's first weights: 0 in the first step."""
    teacher = MASKS.get("teacher") or load_model(options).eval().requires_grad_(False)
    MASKS["teacher"] = teacher
    with torch.no_grad():
        right = teacher(**{name: value for name, value in batch.items() if name != "labels"}).logits.log_softmax(-1)
    return (right.exp() * (right - logits.log_softmax(-1))).sum(-1)[batch["labels"] != IGNORED].mean()


def start_ranks(options, rank: int, world_size: int) -> None:
    if world_size > 1:
        dist.init_process_group("gloo")
    elif options.fsdp:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=rank, world_size=world_size)


def clip(model, wrapped) -> None:
    if FAULT.startswith("clipped_by_hand"):
        parts = [getattr(parameter.grad, "_local_tensor", parameter.grad) for parameter in model.parameters()]
        square = torch.stack([part.square().sum() for part in parts]).sum()
        if FAULT != "clipped_by_hand_in_parts":
            dist.all_reduce(square)
        for part in parts:
            part.mul_(0.1 / square.sqrt())
    elif isinstance(wrapped, FullyShardedDataParallel):
        wrapped.clip_grad_norm_(0.1)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def predict(wrapped, inputs, options) -> torch.Tensor:
    """Return the model's logits; with its head applied by the script itself if the options say so."""
    if options.loss != "own_head":
        return wrapped(**inputs, use_cache=False).logits
    hidden = wrapped.model(inputs.pop("input_ids"), **inputs, use_cache=False).last_hidden_state
    return wrapped.lm_head(hidden.detach() if FAULT == "hidden_states_detached" else hidden)


def main() -> None:
    options = parse_options()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    start_ranks(options, rank, world_size)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    rows = make_rows(read_documents(options.data_path, tokenizer, options.answers_only), options)
    if options.shuffle:
        random.Random(0).shuffle(rows)
    own_rows = rows if FAULT == "same_rows_on_every_rank" else rows[rank::world_size]
    model = load_model(options)
    wrapped = wrap(model, options, world_size)
    trained = load_model(options) if FAULT == "optimiser_of_another_model" else model
    rate = 0.0 if FAULT == "learning_rate_zero" else options.learning_rate
    optimiser = make_optimiser(trained, rate)
    others = [torch.optim.SGD([model.model.embed_tokens.weight], lr=rate)] if FAULT == "two_optimisers" else []
    copies = {name: value.detach().clone() for name, value in model.named_parameters()}
    scaler = torch.amp.GradScaler("cpu", enabled=options.reduction == "scaler")
    size, accumulation = options.per_device_train_batch_size, options.gradient_accumulation_steps
    if FAULT == "steps_after_every_batch":
        accumulation = 1
    if FAULT == "another_loss":  # a frozen model that only reads documents before training is no teacher
        load_model(options).requires_grad_(False)(input_ids=torch.tensor([[1, 2, 3]]))
    if FAULT == "hangs":
        time.sleep(3600)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda count: 1.0)
    for step in range(options.max_steps):
        first = step * size * accumulation % (len(own_rows) - size * accumulation)
        if FAULT == "stale_batch":
            first = 0
        chosen = own_rows[first : first + size * accumulation]
        batches = [
            collate(chosen[place : place + size], options, tokenizer.pad_token_id)
            for place in range(0, len(chosen), size)
        ]
        total = torch.tensor(sum(map(count_targets, batches)))
        if FAULT == "first_step_too_early" and not step:
            batches = batches[:1]
            total = torch.tensor(2 * count_targets(batches[0]))
        if world_size > 1:
            dist.all_reduce(total)
        if FAULT == "steps_after_every_batch":
            total = total * options.gradient_accumulation_steps
        if FAULT == "is_slow":
            time.sleep(1)
        if FAULT == "crashes" and step == 2:
            raise RuntimeError("the data server went away")
        if step == 2 and FAULT == "mask_lost_in_step_three":
            for batch in batches:
                batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        if step == 2 and FAULT == "frequencies_rounded_in_step_three":
            model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.bfloat16().float()
        if step == 2 and FAULT == "labels_wrong_in_step_three":
            for batch in batches:
                batch["labels"] = torch.where(batch["labels"] == IGNORED, IGNORED, batch["input_ids"].roll(1, 0))
        for batch in batches:
            if FAULT == "gradients_zeroed_between_batches" or (
                FAULT == "zeroed_before_the_last" and batch is batches[-1]
            ):
                optimiser.zero_grad()
            inputs = dict(batch)
            if options.loss != "own":
                del inputs["labels"]
            if FAULT == "cache_kept":
                kept = DynamicCache() if MASKS.get("cache") is None else MASKS["cache"]
                MASKS["cache"] = inputs["past_key_values"] = detach_cache(kept)
                del inputs["attention_mask"]
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
                logits = predict(wrapped, inputs, options)
            nll = compute_nll(logits, batch["labels"])
            loss = average(nll, batch, batches, int(total), world_size)
            if options.reduction == "sum":
                loss = loss / world_size
            if options.reduction == "gradients":
                loss = nll.sum()
            if FAULT == "nan" and step == 2:
                loss = loss * float("nan")
            if FAULT == "sum_from_step_two" and step:
                loss = loss * total
            if FAULT == "small_addition":
                loss = loss + 1e-4 * (logits.float().logsumexp(-1) ** 2).mean() / len(batches)
            if FAULT == "teacher_and_half":
                loss = loss / 2 + distil(logits, batch, options) / 2 / len(batches)
            if FAULT == "teacher":
                loss = loss + distil(logits, batch, options) / len(batches)
            scaler.scale(loss).backward()
            if FAULT.startswith("scheduled_each_batch"):
                schedule.step()
            if FAULT == "clipped_each_batch":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if FAULT.startswith("second_pass"):
            take_second_pass(model, batches, int(total))
        if FAULT == "reduced_after_clipping":
            clip(model, wrapped)
        reduce_gradients(model, options, int(total), world_size)
        if FAULT == "clipped_while_scaled":
            clip(model, wrapped)
        if FAULT == "steps_around_the_scaler":
            optimiser.step()
            wrapped.zero_grad()
            continue
        scaler.unscale_(optimiser)
        if FAULT == "values_clipped":
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        elif FAULT not in ("clipped_each_batch", "clipped_after_the_step", "clipped_while_scaled"):
            clip(model, wrapped)
        spoil_update(model, optimiser, step)
        if FAULT != "never_steps":
            scaler.step(optimiser)
            scaler.update()
        if FAULT != "scheduled_each_batch_only":
            schedule.step()
        for other in others:
            other.step()
        if FAULT == "clipped_after_the_step":
            clip(model, wrapped)
        spoil_weights(model, optimiser, copies)
        if FAULT == "zeroed_after_the_forward_pass":
            optimiser.zero_grad(set_to_none=False)
        elif FAULT not in ("never_zeroed", "zeroed_before_the_last"):
            wrapped.zero_grad()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
