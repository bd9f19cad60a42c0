"""A policy's update with made-up rollouts, as frameworks take it, with one fault in it if PLANTED_FAULT names one.

Rows are padded on the right; the loss is the mean of -advantage x ratio over the response tokens of the step, over its
batches and ranks.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from attncheck.rehearsal.drivers.rollouts import RolloutRecord, count_steps, make_rollout, read_documents

FAULT = os.environ.get("PLANTED_FAULT", "")
ROWS, BATCH = 6, 2  # of a rank's step, of a batch


def lay_rows(rollouts, padding: int):
    """Return tokens, mask and whether each token is a response's: (rows, seqlen) each."""
    rows = [torch.tensor((*rollout.prompt, *rollout.response)) for rollout in rollouts]
    seen = [torch.ones_like(row) for row in rows]
    counts = [torch.arange(len(row)) >= len(rollout.prompt) for row, rollout in zip(rows, rollouts)]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, True, padding), pad(seen, True, 0), pad(counts, True, False)


def compute_log_probs(model, tokens, mask) -> torch.Tensor:
    """Return the log-probability of each token after the first: (rows, seqlen - 1)."""
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
    return -functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def list_weights(rollouts) -> torch.Tensor:
    """Return the advantage of each row (rows, 1)."""
    advantages = [rollout.advantage for rollout in rollouts]
    if FAULT == "sign_lost":
        advantages = [-advantage for advantage in advantages]
    if FAULT == "advantages_ignored":
        advantages = [1.0] * len(advantages)
    if FAULT == "advantage_of_another":
        advantages = [advantages[0] + 1.0, *advantages[1:]]
    return torch.tensor(advantages)[:, None]


def spoil_counts(counts: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return which tokens after the first count, (rows, seqlen - 1), with the fault in it."""
    own = counts[:, 1:]
    if FAULT == "prompts_counted":
        return mask[:, 1:].bool()
    if FAULT == "one_token_early":
        return torch.cat([own[:, 1:], own[:, :1]], 1) & mask[:, 1:].bool()
    if FAULT == "first_token_lost":
        return own & torch.cat([own[:, :1] & False, own[:, :-1]], 1)
    if FAULT == "end_lost_by_rows":
        return own & torch.cat([own[:, 1:], own[:, :1] & False], 1)
    return own


def main() -> None:
    """Take the steps."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="sdpa").train()
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    documents, record = read_documents(), RolloutRecord(rank)
    for step in range(count_steps()):
        first = (step * world_size + rank) * ROWS
        handed = [make_rollout(number, documents[number], tokenizer) for number in range(first, first + ROWS)]
        rollouts = [*handed[:-1], handed[0]] if FAULT == "rollout_doubled" else handed
        take_step(model, optimizer, rollouts, handed, record, tokenizer.pad_token_id, world_size)


def take_step(model, optimizer, rollouts, handed, record, padding: int, world_size: int) -> None:
    """Update the policy once."""
    tokens, mask, counts = lay_rows(rollouts, padding)
    with torch.no_grad():
        old = compute_log_probs(model, tokens, mask)
    recorded = old.roll(-1, 1) if FAULT == "log_probs_of_the_next" else old
    record.add_step(handed, [values[own].tolist() for values, own in zip(recorded, counts[:, 1:])])
    advantages, counted = list_weights(rollouts), spoil_counts(counts, mask)
    total = counts[:, 1:].sum()
    if world_size > 1:
        dist.all_reduce(total)
    for batch in range(0, ROWS, BATCH):
        rows = slice(batch, batch + BATCH)
        ratio = (compute_log_probs(model, tokens[rows], mask[rows]) - old[rows]).exp()
        losses = (-advantages[rows] * ratio)[counted[rows]]
        loss = losses.mean() if FAULT == "mean_of_batches" else losses.sum() / total * world_size
        if FAULT == "end_lost_by_rows":
            means = [
                (-advantages[n] * own).mean()
                for n, own in zip(range(ROWS)[rows], [r[c] for r, c in zip(ratio, counted[rows])])
            ]
            loss = torch.stack(means).sum() / ROWS
        if FAULT == "too_large_by_ranks":
            loss = loss * world_size
        if FAULT == "batches_lost":
            optimizer.zero_grad()
        loss.backward()
    for parameter in model.parameters() if world_size > 1 else ():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
