"""Puts ring-flash-attn's Hugging Face adapter to the proof inside a rank: small models, sharded, against whole ones.

Every rank builds the same model from the same seed, substitutes the attention as its users do, and runs its shard of
one packed row forward and backward. Rank 0 has the whole model in float32 with eager attention, one document after the
other, so that nothing rests on transformers' own handling of packed rows; and the same in the sharded model's dtype,
whose error is what rounding alone makes.
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/adapters/hf_adapter.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from attncheck.attention.calls import ring_package
from attncheck.attention.device import message
from attncheck.core import codec
from attncheck.core.results.hf_adapter import SHARD, AdapterRun, Shape
from attncheck.core.results.verdicts import Outcome
from attncheck.ring.worker import packed_row, small_models
from attncheck.ring.worker.packed_row import Packed

if TYPE_CHECKING:
    from attncheck.ring.worker.rank import Member

DTYPE = torch.bfloat16


def adapter(member: Member) -> None:
    """Measure every item, (attn_implementation, shape of model), over all ranks; rank 0 judges."""
    from attncheck.ring.worker.rank import Lost

    _stay_offline()
    proof = Proof(member)
    for index, (implementation, shape) in enumerate(member.message["items"]):
        member.say({"started": index})
        try:
            found = proof.measure(implementation, shape)
        except Exception as error:  # the peers may wait for us in a collective
            raise Lost(message(error)) from error
        member.say({"item": index, "answer": codec.plain(found)})


def _stay_offline() -> None:
    """Keep transformers from looking for kernels on the Hub; those in its cache are found."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


class Proof:
    """The adapter in this process, substituted once: a second substitution raises."""

    def __init__(self, member: Member) -> None:
        self.member, self.entered = member, 0
        self.missing = member.agree(ring_package.find().missing)
        self.broken = member.agree("" if self.missing else self._substitute())
        self.device = torch.device("cuda", torch.cuda.current_device()) if member.device.kind == "cuda" else "cpu"
        self.first, self.last = member.rank * SHARD, (member.rank + 1) * SHARD

    def _substitute(self) -> str:
        """Substitute transformers' flash attention, and count the adapter's calls. Return what it raises, or ""."""
        try:
            ring_package.load().substitute_hf_flash_attn(self.member.group, 1)
            module: Any = sys.modules["ring_flash_attn.adapters.hf_adapter"]
            inner = module.llama3_flash_attn_varlen_func
        except BaseException as error:  # a damaged package may raise anything
            hidden = message(error.__context__) if error.__context__ is not None else ""
            return message(error) + (f"; it hides {hidden}" if hidden not in ("", message(error)) else "")

        def counted(*arguments: Any, **words: Any) -> Any:
            self.entered += 1
            return inner(*arguments, **words)

        module.llama3_flash_attn_varlen_func = counted
        return ""

    def measure(self, implementation: str, shape: Shape) -> AdapterRun:
        """Return what the adapter does to a model; every rank of the group must ask for the same."""
        ranks = self.member.world_size
        blank = AdapterRun(implementation, shape, "ok", ranks=ranks, shimmed_names=ring_package.put_back())
        if self.missing or self.broken:
            outcome: Outcome = "skipped" if self.missing else "raised"
            return replace(blank, outcome=outcome, reason=self.missing or self.broken)
        model, selected, reason = small_models.selected(
            shape, implementation, DTYPE, self.device, self.member.device.emulated
        )
        reason = self.member.agree(reason)
        if reason or model is None:
            return replace(blank, outcome="skipped", reason=reason)
        blank = replace(blank, selected=selected, layers=model.config.num_hidden_layers)
        row = self._row()
        logits, gradients = self._sharded(model, row, backward=True)
        entered = self._fewest(self.entered)
        elsewhere, _ = self._sharded(model, self._changed(row, row.edges[1], SHARD))
        document, _ = self._sharded(model, self._changed(row, 0, row.edges[1]))
        beyond = slice((ranks - 1) * SHARD, row.edges[2])
        found = replace(
            blank,
            entered=entered,
            reaches=not torch.equal(logits[beyond], elsewhere[beyond]),
            leaks=not torch.equal(logits[row.edges[1] :], document[row.edges[1] :]),
        )
        return self._judged(found, row, logits, gradients) if self.member.leads else found

    def _row(self) -> Packed:
        """Return a short document, one that reaches from the first shard into the last, and another short one."""
        size, generator = self.member.world_size * SHARD, torch.Generator().manual_seed(1)
        short = SHARD // 8
        tokens, labels = torch.randint(small_models.VOCABULARY, (2, size), generator=generator).to(self.device)
        return Packed(tokens, labels, tuple(accumulate((0, short, size - 2 * short, short))))

    def _changed(self, row: Packed, start: int, stop: int) -> Packed:
        tokens = row.tokens.clone()
        tokens[start:stop] = (tokens[start:stop] + 1) % small_models.VOCABULARY
        return replace(row, tokens=tokens)

    def _sharded(self, model: Any, row: Packed, backward: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the whole row, (tokens, vocabulary), and the gradients summed over the ranks."""
        package, group = ring_package.load(), self.member.group
        edges = torch.tensor(row.edges, dtype=torch.int32, device=self.device)
        package.update_ring_flash_attn_params(edges, group)
        positions = packed_row.positions(row.pieces(self.first, self.last), self.device)
        self.entered = 0
        mine = slice(self.first, self.last)
        with torch.set_grad_enabled(backward):
            logits = model(input_ids=row.tokens[None, mine], position_ids=positions[None], use_cache=False).logits[0]
        local = logits.detach().float().contiguous()
        parts = [torch.empty_like(local) for _ in range(self.member.world_size)]
        dist.all_gather(parts, local, group=group)
        if not backward:
            return torch.cat(parts), None
        gradients = packed_row.gradients(model, logits, row.labels[mine], len(row.tokens))
        dist.all_reduce(gradients, group=group)
        return torch.cat(parts), gradients

    def _fewest(self, count: int) -> int:
        found = torch.tensor([count], device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MIN, group=self.member.group)
        return int(found)

    def _judged(self, found: AdapterRun, row: Packed, logits: Tensor, gradients: Tensor | None) -> AdapterRun:
        """Return the errors against the whole model, and which wrong one the logits are nearest to."""
        assert gradients is not None
        exact, exact_gradients = packed_row.whole(small_models.eager(found.shape, DTYPE, self.device).float(), row)
        same, same_gradients = packed_row.whole(small_models.eager(found.shape, DTYPE, self.device), row)
        wrong = {name: packed_row.relative(logits, other) for name, other in self._wrong(found.shape, row)}
        nearest = min(wrong, key=lambda name: wrong[name])
        return replace(
            found,
            error=packed_row.relative(logits, exact),
            rounding=packed_row.relative(same, exact),
            gradient_error=packed_row.relative(gradients, exact_gradients),
            gradient_rounding=packed_row.relative(same_gradients, exact_gradients),
            nearest=nearest,
            nearest_error=wrong[nearest],
        )

    def _wrong(self, shape: Shape, row: Packed) -> Iterator[tuple[str, Tensor]]:
        """Yield models that attend wrongly, in words, and their logits."""
        ranks = range(self.member.world_size)
        apart = [piece for rank in ranks for piece in row.pieces(rank * SHARD, (rank + 1) * SHARD)]
        whole = small_models.eager(shape, DTYPE, self.device).float()
        yield "each shard by itself", packed_row.logits(whole, row, apart).detach()
        for words, model in small_models.spoilt(shape, DTYPE, self.device):
            yield words, packed_row.logits(model.float(), row, row.documents()).detach()
