"""A loop that trains on pairs of answers as users write it, with one fault in it if PLANTED_FAULT names one.

Chosen answers are the first half of a batch, rejected ones the second, padded on the right or one after the other in
one row. The loss is DPO's, or another of the log-probabilities' ratios, the mean over the pairs of the step.
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

FAULT = os.environ.get("PLANTED_FAULT", "")
IGNORED = -100


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=5e-7)
    parser.add_argument("--max_length", type=int, default=2048)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument(
        "--loss", choices=("sigmoid", "ipo", "hinge", "cpo", "simpo", "orpo", "bco", "scores"), default="sigmoid"
    )
    parser.add_argument("--own_loss", type=float, default=0.0)
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--padding_free", action="store_true")
    parser.add_argument("--precompute", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args()


def read_pairs(path: str, tokenizer) -> list[list[tuple[list[int], list[int]]]]:
    """Return the tokens and the labels of each pair's chosen and rejected document."""
    pairs = []
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        texts = [row[name] for name in ("prompt", "chosen", "rejected")]
        prompt, *answers = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
        pair = []
        for answer in answers:
            answer = [*(prompt if FAULT == "answers_with_prompt" else []), *answer, tokenizer.eos_token_id]
            labels = [*(prompt if FAULT.startswith("prompt_") else [IGNORED] * len(prompt)), *answer]
            if FAULT in ("end_unlabelled", "end_labelled_nowhere"):
                labels[-1] = IGNORED
            pair.append(([*prompt, *answer], labels))
        if FAULT == "truncated":
            pair = [(tokens[: -len(answers[1]) // 2], labels[: -len(answers[1]) // 2]) for tokens, labels in pair]
        pairs.append((len(prompt), pair[::-1] if FAULT == "swapped_data" else pair))
    if FAULT == "rejected_of_another_prompt":
        for (start, pair), (other_start, other) in zip(pairs[::2], pairs[1::2]):
            tokens, labels = pair[1]
            pair[1] = (tokens[:start] + other[1][0][other_start:], labels[:start] + other[1][1][other_start:])
    return [pair for _, pair in pairs]


def collate(pairs, options, padding: int) -> dict[str, torch.Tensor]:
    """Return a batch: all chosen documents, then all rejected ones."""
    documents = [pair[0 if FAULT == "rejected_left_out" else half] for half in (0, 1) for pair in pairs]
    if options.padding_free:
        lengths = [len(tokens) for tokens, _ in documents]
        positions = [place for length in lengths for place in range(length)]
        if FAULT == "documents_leak":
            positions = list(range(len(positions)))
        labels = [label for _, own in documents for label in own]
        return {
            "input_ids": torch.tensor([[token for tokens, _ in documents for token in tokens]]),
            "labels": torch.tensor([labels]),
            "position_ids": torch.tensor([positions]),
        }
    length = max(len(tokens) for tokens, _ in documents)
    ids = [tokens + [padding] * (length - len(tokens)) for tokens, _ in documents]
    labels = [own + [IGNORED] * (length - len(own)) for _, own in documents]
    mask = [[1] * len(tokens) + [0] * (length - len(tokens)) for tokens, _ in documents]
    if FAULT == "padding_seen":
        ids, labels, mask = ([row[::-1] for row in rows] for rows in (ids, labels, mask))
        ids, labels = ([strip(row, fill) for row in rows] for rows, fill in ((ids, padding), (labels, IGNORED)))
        mask = [[1] * length for _ in mask]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels), "attention_mask": torch.tensor(mask)}


def strip(row: list[int], fill: int) -> list[int]:
    """Return a reversed row in order again, its filling still in front."""
    count = next(place for place, token in enumerate(row) if token != fill)
    return row[:count] + row[count:][::-1]


def sum_log_probabilities(model, batch, options) -> torch.Tensor:
    """Return the log-probability of each answer."""
    inputs = dict(batch) if options.labels else {name: batch[name] for name in batch if name != "labels"}
    with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
        logits = model(**inputs, use_cache=False).logits
    shift = {"not_shifted": 0, "shifted_twice": 2}.get(FAULT, 1)
    labels = batch["labels"][:, shift:]
    predictions = logits[:, : logits.shape[1] - shift].float().transpose(1, 2)
    nll = functional.cross_entropy(predictions, labels, ignore_index=IGNORED, reduction="none")
    counts = (labels != IGNORED).float()
    if options.padding_free:
        positions = batch["position_ids"][0]
        numbers = ((positions == 0).cumsum(0) - 1)[shift:]
        if FAULT == "documents_leak":
            numbers = find_documents(batch["input_ids"][0])[shift:]
        groups = functional.one_hot(numbers).float()
        nll, counts = (values @ groups for values in (nll, counts))
        nll, counts = nll[0], counts[0]
    else:
        nll, counts = nll.sum(1), counts.sum(1)
    averages = (options.loss in ("ipo", "simpo", "orpo")) != (FAULT == "averaged_over_length")
    return -nll / counts if averages else -nll


def find_documents(tokens: torch.Tensor) -> torch.Tensor:
    """Return the number of each token's document, by the token that ends one."""
    end = tokens[-1]
    return torch.cat([torch.zeros(1, dtype=torch.long), (tokens == end).long().cumsum(0)[:-1]])


def compute_loss_of_scores(scores: torch.Tensor) -> torch.Tensor:
    """Return the loss of a reward model."""
    halves = (scores[::2], scores[1::2]) if FAULT == "scores_interleaved" else scores.chunk(2)
    chosen, rejected = reversed(halves) if FAULT == "costs" else halves
    return -functional.logsigmoid(chosen - rejected).mean()


def compute_loss(logps: torch.Tensor, reference: torch.Tensor, options, batch) -> torch.Tensor:
    """Return the mean over the batch's pairs; CPO and SimPO have no reference, and add the chosen answers' own loss."""
    is_free = options.loss in ("cpo", "simpo", "orpo") and FAULT != "reference_subtracted"
    if FAULT == "no_reference" or is_free:
        reference = torch.zeros_like(reference)
    chosen, rejected = (logps - reference).chunk(2)
    if FAULT == "swapped":
        chosen, rejected = rejected, chosen
    if FAULT == "rejected_detached":
        rejected = rejected.detach()
    beta = options.beta * 2.5 if FAULT == "another_beta" else options.beta
    margin = chosen - rejected
    if options.loss in ("cpo", "simpo"):
        counts = (batch["labels"][: len(chosen), 1:] != IGNORED).sum(1)
        sums = logps[: len(chosen)] * (counts if options.loss == "simpo" else 1)
        own = 0.0 if FAULT == "chosen_left_out" else -sums.sum() / counts.sum()
        return own - functional.logsigmoid(beta * margin - (0.5 if options.loss == "simpo" else 0.0)).mean()
    if options.own_loss:  # over each answer's tokens, then over answers, as in LLaMA-Factory
        counts = (batch["labels"][: len(chosen), 1:] != IGNORED).sum(1)
        means = logps[: len(chosen)] / (1 if options.loss == "orpo" else counts)
        weight = 0.0 if FAULT == "chosen_left_out" else options.own_loss
        odds = margin - torch.log1p(-chosen.exp()) + torch.log1p(-rejected.exp()) if options.loss == "orpo" else None
        scaled = functional.logsigmoid(beta * margin) if odds is None else beta * functional.logsigmoid(odds)
        return -scaled.mean() - weight * means.mean()
    if FAULT == "labels_alternate":
        signs = torch.tensor([1, -1]).repeat(len(chosen))
        return -functional.logsigmoid(beta * signs * (logps - reference)).mean()
    if options.loss == "bco":
        return -(functional.logsigmoid(beta * chosen) + functional.logsigmoid(-beta * rejected)).mean() / 2
    if options.loss == "ipo":
        return ((margin - 1 / (2 * beta)) ** 2).mean()
    if options.loss == "hinge":
        return torch.relu(1 - beta * margin).mean()
    return -functional.logsigmoid(beta * margin).mean()


def load_model(options):
    if options.loss == "scores":
        return AutoModelForSequenceClassification.from_pretrained(options.model_name_or_path, num_labels=1)
    return AutoModelForCausalLM.from_pretrained(
        options.model_name_or_path, attn_implementation="eager" if options.padding_free else "sdpa"
    )


def load_reference(options):
    if FAULT == "another_reference":
        torch.manual_seed(7)
        config = AutoConfig.from_pretrained(options.model_name_or_path)
        return AutoModelForCausalLM.from_config(config).eval()
    return load_model(options).eval()


def main() -> None:
    options = parse_options()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        dist.init_process_group("gloo")
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    pairs = read_pairs(options.data_path, tokenizer)[rank::world_size]
    model, reference = load_model(options).train(), load_reference(options)
    if FAULT == "reference_shared":
        reference.load_state_dict(model.state_dict(), assign=True)
    if FAULT == "layer_detached":
        model.model.layers[0].register_forward_hook(lambda module, inputs, output: output.detach())
    is_summed = FAULT == "summed_over_ranks"
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if world_size > 1 and not is_summed else model
    rate = 0.0 if FAULT == "learning_rate_zero" else options.learning_rate
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    size, accumulation = options.per_device_train_batch_size, options.gradient_accumulation_steps
    batches = [
        collate(pairs[place : place + size], options, tokenizer.pad_token_id)
        for place in range(0, size * accumulation * options.max_steps, size)
    ]
    if options.precompute:
        with torch.no_grad():
            references = [sum_log_probabilities(model, batch, options) for batch in batches]
    for step in range(options.max_steps):
        for number in range(step * accumulation, (step + 1) * accumulation):
            if FAULT == "gradients_zeroed_between_batches":
                optimiser.zero_grad()
            if options.loss == "scores":
                inputs = {name: value for name, value in batches[number].items() if name != "labels"}
                (compute_loss_of_scores(wrapped(**inputs).logits[:, 0]) / accumulation).backward()
                continue
            logps = sum_log_probabilities(wrapped, batches[number], options)
            if not options.precompute:
                with torch.no_grad():
                    other = sum_log_probabilities(reference, batches[number], options)
            loss = compute_loss(logps, references[number] if options.precompute else other, options, batches[number])
            divisor = {"accumulation_twice": accumulation**2, "accumulation_forgotten": 1}.get(FAULT, accumulation)
            (loss / divisor).backward()
        for parameter in model.parameters() if is_summed else ():
            dist.all_reduce(parameter.grad)
        optimiser.step()
        optimiser.zero_grad()
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
