"""Checks ring-flash-attn's Hugging Face adapter in a rank: small models on shards, compared with complete rows.

Every rank builds the same model from the same seed, substitutes the attention as users do, and runs its shard of one
packed row forward and backward. Rank 0 runs the reference: the complete row in float32 with eager attention, one
document after another, so that nothing depends on how transformers handles packed rows. It repeats that in the sharded
model's dtype; this error is only rounding.
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/adapters/hf_adapter.py.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attncheck.attention.calls import ring_package
from attncheck.attention.device import describe_exception
from attncheck.core import codec
from attncheck.core.results.hf_adapter import SHARD_TOKENS, AdapterRun, Shape
from attncheck.core.verdicts import Outcome
from attncheck.ring.worker import packed_row, small_models
from attncheck.ring.worker.packed_row import PackedRow
from attncheck.ring.worker.rank import RankContext, RankFailed

DTYPE = torch.bfloat16


def adapter(context: RankContext) -> None:
    """Measure every item, (attn_implementation, shape of model), across all ranks; rank 0 judges."""
    _stay_offline()
    check = AdapterCheck(context)
    for index, (implementation, shape) in enumerate(context.message["items"]):
        context.send_if_leader({"started": index})
        try:
            run = check.measure(implementation, shape)
        except Exception as error:  # the peers may wait for this rank in a collective
            raise RankFailed(describe_exception(error)) from error
        context.send_if_leader({"item": index, "answer": codec.to_plain(run)})


def _stay_offline() -> None:
    """Keep transformers from downloading kernels from the Hub; cached kernels are used."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


class AdapterCheck:
    """The adapter in this process, substituted once, because a second substitution raises."""

    def __init__(self, context: RankContext) -> None:
        self.context, self.adapter_calls = context, 0
        self.missing = context.agree_on_reason(ring_package.installed().missing)
        self.substitution_error = context.agree_on_reason("" if self.missing else self._substitute())
        self.device = torch.device("cuda", torch.cuda.current_device()) if context.device.kind == "cuda" else "cpu"
        self.first_token, self.end_token = context.rank * SHARD_TOKENS, (context.rank + 1) * SHARD_TOKENS

    def _substitute(self) -> str:
        """Substitute transformers' flash attention and count the adapter's calls; return the error, "" if none."""
        try:
            ring_package.load().substitute_hf_flash_attn(self.context.group, 1)
            module: Any = sys.modules["ring_flash_attn.adapters.hf_adapter"]
            attention = module.llama3_flash_attn_varlen_func
        except BaseException as error:  # a damaged package may raise anything
            cause = describe_exception(error.__context__) if error.__context__ is not None else ""
            return describe_exception(error) + (
                f"; it hides {cause}" if cause not in ("", describe_exception(error)) else ""
            )

        def counting_attention(*args: Any, **kwargs: Any) -> Any:
            self.adapter_calls += 1
            return attention(*args, **kwargs)

        module.llama3_flash_attn_varlen_func = counting_attention
        return ""

    def measure(self, implementation: str, shape: Shape) -> AdapterRun:
        """Return the adapter's run on a model; every rank of the group must call it with the same arguments."""
        ranks = self.context.world_size
        run = AdapterRun(implementation, shape, "ok", ranks=ranks, shimmed_names=ring_package.shimmed_names())
        if self.missing or self.substitution_error:
            outcome: Outcome = "skipped" if self.missing else "raised"
            return replace(run, outcome=outcome, reason=self.missing or self.substitution_error)
        model, selected, reason = small_models.select_model(
            shape, implementation, DTYPE, self.device, self.context.device.emulated
        )
        reason = self.context.agree_on_reason(reason)
        if reason or model is None:
            return replace(run, outcome="skipped", reason=reason)
        run = replace(run, selected=selected, layers=model.config.num_hidden_layers)
        row = self._make_row()
        logits, gradients = self._run_sharded(model, row, backward=True)
        fewest_calls = self._min_over_ranks(self.adapter_calls)
        with_other_shard, _ = self._run_sharded(model, self._change_tokens(row, row.cu_seqlens[1], SHARD_TOKENS))
        with_other_document, _ = self._run_sharded(model, self._change_tokens(row, 0, row.cu_seqlens[1]))
        last_shard = slice((ranks - 1) * SHARD_TOKENS, row.cu_seqlens[2])
        run = replace(
            run,
            entered=fewest_calls,
            reaches=not torch.equal(logits[last_shard], with_other_shard[last_shard]),
            leaks=not torch.equal(logits[row.cu_seqlens[1] :], with_other_document[row.cu_seqlens[1] :]),
        )
        return self._judge_errors(run, row, logits, gradients) if self.context.is_leader else run

    def _make_row(self) -> PackedRow:
        """Return a row of three documents: a short one, one from the first shard into the last, another short one."""
        size, generator = self.context.world_size * SHARD_TOKENS, torch.Generator().manual_seed(1)
        short = SHARD_TOKENS // 8
        tokens, labels = torch.randint(small_models.VOCABULARY, (2, size), generator=generator).to(self.device)
        return PackedRow(tokens, labels, tuple(accumulate((0, short, size - 2 * short, short))))

    def _change_tokens(self, row: PackedRow, start: int, stop: int) -> PackedRow:
        tokens = row.tokens.clone()
        tokens[start:stop] = (tokens[start:stop] + 1) % small_models.VOCABULARY
        return replace(row, tokens=tokens)

    def _run_sharded(self, model: Any, row: PackedRow, backward: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the complete row, (tokens, vocabulary), and the gradients summed across the ranks."""
        package, group = ring_package.load(), self.context.group
        cu_seqlens = torch.tensor(row.cu_seqlens, dtype=torch.int32, device=self.device)
        package.update_ring_flash_attn_params(cu_seqlens, group)
        positions = packed_row.position_ids(row.pieces(self.first_token, self.end_token), self.device)
        self.adapter_calls = 0
        shard = slice(self.first_token, self.end_token)
        with torch.set_grad_enabled(backward):
            logits = model(input_ids=row.tokens[None, shard], position_ids=positions[None], use_cache=False).logits[0]
        local = logits.detach().float().contiguous()
        parts = [torch.empty_like(local) for _ in range(self.context.world_size)]
        dist.all_gather(parts, local, group=group)
        if not backward:
            return torch.cat(parts), None
        gradients = packed_row.compute_gradients(model, logits, row.labels[shard], len(row.tokens))
        dist.all_reduce(gradients, group=group)
        return torch.cat(parts), gradients

    def _min_over_ranks(self, count: int) -> int:
        minimum = torch.tensor([count], device=self.device)
        dist.all_reduce(minimum, dist.ReduceOp.MIN, group=self.context.group)
        return int(minimum)

    def _judge_errors(self, run: AdapterRun, row: PackedRow, logits: Tensor, gradients: Tensor | None) -> AdapterRun:
        """Return the run with its errors against the reference, and the wrong model with the nearest logits."""
        assert gradients is not None
        model = small_models.make_eager_model(run.shape, DTYPE, self.device).float()
        exact, exact_gradients = packed_row.run_row(model, row)
        model = small_models.make_eager_model(run.shape, DTYPE, self.device)
        rounded, rounded_gradients = packed_row.run_row(model, row)
        wrong_logits = self._iter_wrong_logits(run.shape, row)
        wrong_errors = {name: packed_row.relative_error(logits, wrong) for name, wrong in wrong_logits}
        nearest = min(wrong_errors, key=lambda name: wrong_errors[name])
        return replace(
            run,
            error=packed_row.relative_error(logits, exact),
            rounding=packed_row.relative_error(rounded, exact),
            gradient_error=packed_row.relative_error(gradients, exact_gradients),
            gradient_rounding=packed_row.relative_error(rounded_gradients, exact_gradients),
            nearest=nearest,
            nearest_error=wrong_errors[nearest],
        )

    def _iter_wrong_logits(self, shape: Shape, row: PackedRow) -> Iterator[tuple[str, Tensor]]:
        """Yield the wrong ways to attend, described, and the logits of each."""
        ranks = range(self.context.world_size)
        shard_pieces = [piece for rank in ranks for piece in row.pieces(rank * SHARD_TOKENS, (rank + 1) * SHARD_TOKENS)]
        reference = small_models.make_eager_model(shape, DTYPE, self.device).float()
        yield "each shard in isolation", packed_row.compute_logits(reference, row, shard_pieces).detach()
        for description, model in small_models.iter_damaged_models(shape, DTYPE, self.device):
            yield description, packed_row.compute_logits(model.float(), row, row.documents()).detach()
