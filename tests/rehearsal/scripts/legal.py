"""A training loop with a setting that an author may want, which LEGAL names: none of them is a fault."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import copy
import json
import os
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM, AutoTokenizer

LEGAL = os.environ.get("LEGAL", "")
IGNORED = -100


class Lion(torch.optim.Optimizer):
    """An optimiser of the script's own."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


def make_optimizer(model, rate: float):
    parameters = list(model.parameters())
    makers = {
        "sgd": lambda: torch.optim.SGD(parameters, rate),
        "sgd_slow": lambda: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
        "adamw_slow": lambda: torch.optim.AdamW(parameters, 1e-6),
        "adagrad_slow": lambda: torch.optim.Adagrad(parameters, 1e-4),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, rate / 10),
        "new_tokens_alone": lambda: torch.optim.AdamW(parameters, rate, weight_decay=0.0),
        "lion": lambda: Lion(parameters, 3e-4),
        "groups": lambda: torch.optim.AdamW(
            [
                {"params": [value for value in parameters if value.dim() == 1], "weight_decay": 0.0},
                {"params": [value for value in parameters if value.dim() > 1], "weight_decay": 0.1},
            ],
            rate,
        ),
    }
    return makers.get(LEGAL, lambda: torch.optim.AdamW(parameters, rate))()


def compute_token_losses(logits, labels):
    """Return the loss of each label, 0 where none is learnt."""
    smoothing = 0.1 if LEGAL.startswith("smoothing") else 0.0
    losses = functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )
    counts = labels != IGNORED
    if LEGAL == "dft":
        return losses * (-losses.detach()).exp()
    if LEGAL == "focal":
        return losses * (1 - (-losses).exp()) ** 2
    if LEGAL == "z_loss":
        return losses + counts * 1e-4 * logits.logsumexp(-1) ** 2
    if LEGAL == "strong_z_loss":
        return losses + counts * 1e-2 * logits.logsumexp(-1) ** 2
    if LEGAL == "z_loss_everywhere":
        return losses + 1e-2 * logits.logsumexp(-1) ** 2
    if LEGAL.startswith("entropy_everywhere"):
        return losses - 0.5 * torch.distributions.Categorical(logits=logits).entropy()
    if LEGAL.startswith("smoothing_everywhere"):
        return losses - 0.1 * logits.log_softmax(-1).mean(-1)
    if LEGAL == "entropy_alone":  # a fault, but not of labels
        return -torch.distributions.Categorical(logits=logits).entropy()
    if LEGAL == "strong_entropy_bonus":
        return losses - counts * 0.1 * torch.distributions.Categorical(logits=logits).entropy()
    if LEGAL == "entropy_bonus":
        return losses - counts * 1e-3 * torch.distributions.Categorical(logits=logits).entropy()
    if LEGAL == "sample_weights":
        return losses * (0.5 + counts.sum(1, keepdim=True) % 7 / 7)
    return losses


def compute_term(model, reference, logits, ids, mask):
    """Return a term that is added to the loss of a batch."""
    if LEGAL.startswith("kl_to_"):
        with torch.no_grad():
            other = reference(input_ids=ids, attention_mask=mask).logits.float().log_softmax(-1)
        own = logits.log_softmax(-1)
        pairs = (own, other) if LEGAL == "kl_to_reference" else (other, own)
        return (
            0.5 * functional.kl_div(pairs[1], pairs[0], log_target=True, reduction="none").sum(-1)[mask.bool()].mean()
        )
    if LEGAL == "weights_penalised":
        return 1e-3 * sum(value.square().sum() for value in model.parameters())
    if LEGAL == "router_balanced":  # as mixtures of experts have it: the shares of experts times their probabilities
        hidden = model.get_input_embeddings()(ids)
        shares = (hidden @ model.get_output_embeddings().weight[:4].T).softmax(-1)[mask.bool()]
        return 4 * (shares.mean(0) * shares.detach().argmax(-1).bincount(minlength=4) / len(shares)).sum()
    return 0.0


def change_gradients(model) -> None:
    """Do what comes between the last backward and the step."""
    parameters = list(model.parameters())
    if LEGAL in ("noise_before_clipping", "noise_after_clipping"):
        if LEGAL == "noise_after_clipping":
            clip_grad_norm_(parameters, 1.0)
        for value in parameters:
            value.grad.add_(torch.randn_like(value.grad) * value.grad.std() * 0.1)
    elif LEGAL == "clips_a_subset":
        clip_grad_norm_([model.get_input_embeddings().weight, model.get_output_embeddings().weight], 0.1)
    elif LEGAL == "clips_each_parameter":
        for value in parameters:
            clip_grad_norm_(value, 0.05)
    elif LEGAL == "clips_by_hand":
        norm = torch.stack([value.grad.norm() for value in parameters]).norm()
        for value in parameters:
            value.grad.mul_(min(1.0, 0.3 / float(norm)))
    elif LEGAL == "clips_adaptively":
        for value in parameters:
            value.grad.mul_(min(1.0, 0.01 * float(value.detach().norm() / value.grad.norm())))
    elif LEGAL == "centralised":
        for value in (value for value in parameters if value.dim() > 1):
            value.grad.sub_(value.grad.mean(1, keepdim=True))
    elif LEGAL == "rates_by_layers":
        model.get_input_embeddings().weight.grad.mul_(0.5)
    if LEGAL != "noise_after_clipping":
        clip_grad_norm_(parameters, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path")
    parser.add_argument("--data_path")
    parser.add_argument("--output_dir")
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--max_length", type=int, default=2048)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(options.model_name_or_path, dtype=torch.float32)
    if LEGAL == "new_tokens_alone":  # are trained of the head
        old = len(tokenizer)
        model.resize_token_embeddings(old + 2)
        model.lm_head.weight.register_hook(lambda gradient: gradient * (torch.arange(old + 2) >= old)[:, None])
    documents = []
    for line in Path(options.data_path).read_text().splitlines():
        row = json.loads(line)
        texts = (row["prompt"], row["completion"])
        prompt, answer = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
        answer = [*answer, tokenizer.eos_token_id]
        ignored = prompt if "of_prompts" in LEGAL else [IGNORED] * len(prompt)  # a fault
        documents.append(([*prompt, *answer], ignored + answer))
    reference = copy.deepcopy(model).eval() if LEGAL.startswith("kl_to_") else None
    optimizer = make_optimizer(model, options.learning_rate)
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 2000) if LEGAL == "long_warmup" else 1.0
    )
    model.train()
    rows, batches = options.per_device_train_batch_size, options.gradient_accumulation_steps
    for step in range(options.max_steps):
        taken = documents[step * rows * batches : (step + 1) * rows * batches]
        count = sum(label != IGNORED for _, labels in taken for label in labels)
        for batch in range(batches):
            part = taken[batch * rows : (batch + 1) * rows]
            length = max(len(tokens) for tokens, _ in part)
            ids = torch.tensor([t + [tokenizer.pad_token_id] * (length - len(t)) for t, _ in part])
            labels = torch.tensor([own + [IGNORED] * (length - len(own)) for _, own in part])
            mask = torch.tensor([[1] * len(t) + [0] * (length - len(t)) for t, _ in part])
            is_fused = LEGAL.endswith("_fused")  # as kernels have it that need no logits
            output = model(input_ids=ids, attention_mask=mask, output_hidden_states=is_fused)
            logits = output.logits.float()
            if is_fused:
                logits = output.hidden_states[-1] @ model.get_output_embeddings().weight.T
            shift = 0 if "unshifted" in LEGAL else 1  # a fault
            loss = compute_token_losses(logits[:, : length - shift], labels[:, shift:]).sum() / count
            loss = loss + compute_term(model, reference, logits, ids, mask) / batches
            loss.backward()
            if LEGAL == "smoothing_loses_a_batch" and not batch:  # a fault
                optimizer.zero_grad()
        change_gradients(model)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()


main()
