"""The experiments themselves, on trainers of our own that have one fault each, and on one that has none."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.doctor.experiments.worker import frameworks, liger, main
from attncheck.doctor.experiments.worker.ranks import run_parts, run_ranks


class Loop:
    """A trainer that divides two documents into micro-batches, or over replicas, and has the named fault."""

    optimizer: Any

    def __init__(self, fault: str, documents: list[list[int]], per_device: int, steps: int) -> None:
        self.fault, self.steps, self.model = fault, steps, main.make_model()
        self.rows = self.train_dataset = [{"input_ids": document} for document in documents]
        self.args = SimpleNamespace(_n_gpu=1, train_batch_size=per_device)
        self.state = SimpleNamespace(log_history=[])

    def create_optimizer(self) -> None:
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(parameters[:-1] if self.fault == "leaves one out" else parameters, lr=1e-2)

    def train(self) -> None:
        for _ in range(frameworks.STEPS):
            if self.fault != "clears nothing":
                self.optimizer.zero_grad()
            self._take_step()

    def _take_step(self) -> None:
        tokens = sum(len(row["input_ids"]) for row in self.rows)
        if self.args._n_gpu > 1:
            self._train_replicas(tokens)
        else:
            self._train_rows(tokens)
        self.state.log_history.append({"grad_norm": float(main.flatten_gradients(self.model.parameters()).norm())})
        self.optimizer.step()

    def _train_rows(self, tokens: int) -> None:
        rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        for row in self.rows[rank::ranks]:
            ids = torch.tensor([row["input_ids"]])
            loss = self._sum_loss(self.model, ids) / tokens
            if self.fault == "mean of means" and self.steps > 1:
                loss = loss * tokens / ids.shape[1] / len(self.rows)
            (loss / (self.steps if self.fault == "divides twice" else 1)).backward()
        if ranks > 1 and self.fault != "not averaged":
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("gloo")
            for parameter in self.model.parameters():
                torch.distributed.all_reduce(parameter.grad)

    def _train_replicas(self, tokens: int) -> None:
        longest = max(len(row["input_ids"]) for row in self.rows)
        ids = torch.tensor([row["input_ids"] + [-100] * (longest - len(row["input_ids"])) for row in self.rows])
        replicas = torch.nn.DataParallel(Halves(self, tokens))
        loss = replicas(ids=ids).loss
        (loss.mean() * (1 if self.fault == "averages replicas" else len(self.rows))).backward()

    @staticmethod
    def _sum_loss(model: Any, ids: Any) -> Any:
        known = ids[:, ids[0] != -100]
        logits = model(input_ids=known).logits[0, :-1].float()
        return torch.nn.functional.cross_entropy(logits, known[0, 1:], reduction="sum")


class Output(dict[str, Any]):
    """What a model returns: keys and attributes."""

    __getattr__ = dict.__getitem__


class Halves(torch.nn.Module):
    """A module that divides its loss by all tokens."""

    def __init__(self, loop: Loop, tokens: int) -> None:
        super().__init__()
        self.loop, self.tokens = loop, tokens

    def forward(self, ids: Any) -> Any:
        return Output(loss=self.loop._sum_loss(self.loop.model, ids) / self.tokens, logits=ids)


def measure(fault: str, steps: int = 1, replicas: int = 1, ranks: int = 1) -> dict[str, Any]:
    def make(folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int) -> Loop:
        return Loop(fault, documents, per_device, steps)

    if ranks == 1:
        return main.measure_step(make, "", steps, replicas)
    measure, folder = lambda: iter([main.measure_step(make, "", steps, 1, ranks)]), tempfile.mkdtemp()
    answer: dict[str, Any] = run_ranks(ranks, measure, folder, time.monotonic() + 60)[0]
    return answer


@pytest.mark.parametrize(("steps", "replicas", "ranks"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 1, 2)])
def test_a_right_trainer_has_the_right_gradient(steps: int, replicas: int, ranks: int) -> None:
    measured = measure("", steps, replicas, ranks)
    assert measured["ratio"] == pytest.approx(1, abs=1e-4) and measured["cosine"] == pytest.approx(1, abs=1e-4)
    assert measured["logged"] == pytest.approx(1, abs=1e-4)
    assert measured["later"] == pytest.approx(1, abs=0.01) and measured["moved"] == 1


def test_gradients_that_are_not_cleared_add_up() -> None:
    assert measure("clears nothing")["later"] == pytest.approx(2, abs=0.01)


def test_a_parameter_that_the_optimiser_does_not_hold_is_not_moved() -> None:
    assert 0 < measure("leaves one out")["moved"] < 1


def test_ranks_that_are_not_averaged_step_with_their_own_documents() -> None:
    assert measure("not averaged", 2, ranks=2)["cosine"] < 0.98


@pytest.mark.parametrize(("ranks", "ratio"), [(1, 1), (2, 2)])
def test_a_model_that_ranks_share_is_compared_with_the_whole_one(tmp_path: Path, ranks: int, ratio: float) -> None:
    """`ranks` is what the trainer multiplies its loss by."""
    main.save_model(str(tmp_path))

    class Shared(Loop):
        def __init__(self, *arguments: Any) -> None:
            super().__init__("", *arguments)
            self.model = main.load_whole_model(str(tmp_path))
            self.model._tp_size = 2

        @staticmethod
        def _sum_loss(model: Any, ids: Any) -> Any:
            return Loop._sum_loss(model, ids) * ranks

    def make(folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int) -> Loop:
        return Shared(documents, per_device, steps)

    measured = main.measure_step(make, str(tmp_path), 2)
    assert measured["ratio"] == pytest.approx(ratio, abs=1e-3) and measured["cosine"] == pytest.approx(1, abs=1e-3)


def test_a_rank_that_waits_for_ever_is_stopped_and_has_no_answer(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no answer in time"):
        run_ranks(2, lambda: iter(lambda: time.sleep(60), 0), str(tmp_path), time.monotonic() + 1)


def test_each_part_keeps_what_it_measured_before_it_ended(tmp_path: Path) -> None:
    def stop(how: Callable[[], object]) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "twins", {"trainer": "trl", "ratio": float("nan")}
        how()

    def fail() -> None:
        raise KeyError("no such\nkey")

    hows: dict[str, Callable[[], object]] = {
        "ends": dict, "waits": partial(time.sleep, 60), "fails": fail, "dies": lambda: os.kill(os.getpid(), 9),
    }  # fmt: skip
    parts = {name: partial(stop, how) for name, how in hows.items()}
    answers = run_parts(parts, str(tmp_path), time.monotonic() + 2)
    assert [len(answer["measured"]["twins"]) for answer in answers.values()] == [1] * 4
    reasons = {name: answer["reason"] for name, answer in answers.items()}
    assert reasons.pop("dies").startswith("it died (wait status ")
    assert reasons == {"ends": "", "waits": "no answer in time", "fails": "KeyError: 'no such\\nkey'"}


def install_liger(monkeypatch: pytest.MonkeyPatch, function: type) -> None:
    """Install a liger-kernel that has one function, and undo what imitating it changes."""
    module: Any = ModuleType("fused_linear_cross_entropy")
    module.LigerFusedLinearCrossEntropyFunction = function
    monkeypatch.setitem(sys.modules, "liger_kernel.ops.fused_linear_cross_entropy", module)
    monkeypatch.setattr(torch, "compile", torch.compile)


@pytest.mark.parametrize("fault", ["", "leaves out the cap"])
def test_a_loss_of_liger_that_leaves_out_the_cap_has_other_gradients(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    class Function:
        @staticmethod
        def forward(ctx: Any, _input: Any, weight: Any, target: Any) -> None: ...

        @staticmethod
        def backward(ctx: Any, grad_output: Any) -> None: ...

    class Capped(Loop):
        def __init__(self, model: Any, leaves_out: bool, *arguments: Any) -> None:
            super().__init__("", *arguments)
            self.model, self.leaves_out = model, leaves_out
            self.train_dataset = [{"ids": row["input_ids"]} for row in self.rows]

        def data_collator(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return rows

        def compute_loss(self, model: Any, rows: list[dict[str, Any]]) -> Any:
            model.config.final_logit_softcapping = None if self.leaves_out else 1.0
            loss = sum(self._sum_loss(model, torch.tensor([row["ids"]])) for row in rows)
            return loss / sum(len(row["ids"]) for row in rows)

        def _train_rows(self, tokens: int) -> None:
            self.compute_loss(self.model, self.train_dataset).backward()

    def make(
        folder: str,
        documents: list[list[int]],
        layout: str,
        attention: str,
        per_device: int,
        steps: int,
        model: Any = None,
        **settings: Any,
    ) -> Loop:
        return Capped(model, bool(fault and settings), documents, per_device, steps)

    install_liger(monkeypatch, Function)
    measured = main.measure_step(partial(main.make_with_softcap, make), str(tmp_path), 1)
    assert (measured["cosine"] < 0.9) == bool(fault) and (measured["ratio"] > 1.5) == bool(fault)


def test_liger_on_a_cpu_is_its_own_code_around_torchs_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    class Function:
        @staticmethod
        def forward(ctx: Any, _input: Any, weight: Any, target: Any, bias: Any = None, reduction: str = "mean") -> Any:
            raise AssertionError("the kernel is not run")

        @staticmethod
        def backward(ctx: Any, grad_output: Any, grad_output2: Any) -> Any:
            raise AssertionError("the kernel is not run")

    install_liger(monkeypatch, Function)
    liger.imitate_liger()
    assert torch.compile(len, mode="max") is len
    hidden, weight, target = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 4, -100])
    loss, other = Function.apply(hidden, weight, target, None, "sum")  # type: ignore[attr-defined]
    assert loss == torch.nn.functional.cross_entropy(hidden @ weight.T, target, reduction="sum") and other == 0


def test_a_loss_that_is_divided_twice_halves_the_gradient() -> None:
    measured = measure("divides twice", steps=2)
    assert measured["ratio"] == pytest.approx(0.5, abs=1e-4) and measured["cosine"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("fault", "later"), [("", 1), ("divides by absent ones", 0.5)])
def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches(fault: str, later: float) -> None:
    class Epoch(Loop):
        def train(self) -> None:
            for count in (2, 1):
                self.optimizer.zero_grad()
                for row in self.rows[:count]:
                    ids = torch.tensor([row["input_ids"]])
                    divisor = self.steps if self.fault else count
                    (self._sum_loss(self.model, ids) / ids.shape[1] / divisor).backward()
                self.optimizer.step()

    def make(folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int) -> Loop:
        assert len(documents) == 3
        return Epoch(fault, documents, per_device, steps)

    measured = main.measure_step(make, "", 2, rows=main.documents()[1:] * 3)
    assert measured["later"] == pytest.approx(later, abs=0.01)


@pytest.mark.parametrize("freezes", [False, True])
def test_a_trainer_that_freezes_the_adapter_that_it_is_given_moves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, freezes: bool
) -> None:
    """Like TRL 0.21's SFTTrainer, which prepares a model that says that it is quantised."""

    def add_adapter(model: Any, config: Any) -> Any:
        model.requires_grad_(False)
        model.lm_head.lora_A = torch.nn.Parameter(torch.eye(model.config.hidden_size))
        model.lm_head.register_forward_pre_hook(lambda head, inputs: (inputs[0] @ head.lora_A,))
        return model

    peft: Any = ModuleType("peft")
    peft.LoraConfig, peft.get_peft_model = SimpleNamespace, add_adapter
    monkeypatch.setitem(sys.modules, "peft", peft)
    main.save_model(str(tmp_path))

    class Given(Loop):
        def __init__(self, model: Any, *arguments: Any) -> None:
            super().__init__("", *arguments)
            self.model, self.args.learning_rate = model, 0.0
            if freezes and model.is_loaded_in_4bit:
                model.requires_grad_(False)

    def make(
        folder: str,
        documents: list[list[int]],
        layout: str,
        attention: str,
        per_device: int,
        steps: int,
        model: Any = None,
    ) -> Loop:
        return Given(model, documents, per_device, steps)

    measured = main.measure_step(partial(main.make_with_adapter, make), str(tmp_path), 2)
    assert measured["moved"] == (0 if freezes else 1)
    assert freezes or measured["ratio"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("fault", "ratio"), [("", 1), ("adds it whole", 2)])
def test_the_balancing_loss_is_divided_by_the_micro_batches(fault: str, ratio: float) -> None:
    class Balanced(Loop):
        def __init__(self, model: Any, *arguments: Any) -> None:
            super().__init__(fault, *arguments)
            self.model = model

        def data_collator(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
            ids = torch.tensor([row["input_ids"] for row in rows])
            return {"input_ids": ids, "labels": ids}

        def _train_rows(self, tokens: int) -> None:
            for row in self.rows:
                out = self.model(**self.data_collator([row]))
                balance = out.aux_loss * self.model.router_aux_loss_coef
                share = 1 if self.fault else len(self.rows)
                ((out.loss - balance) / len(self.rows) + balance / share).backward()

    def make(
        folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int, model: Any
    ) -> Loop:
        return Balanced(model, documents, per_device, steps)

    rows = main.documents()[1:] * 2
    measured = main.measure_step(partial(main.make_with_experts, make), "", 2, rows=rows)
    assert measured["ratio"] == pytest.approx(ratio, rel=0.05)


def test_means_over_micro_batches_point_elsewhere() -> None:
    assert measure("mean of means", steps=2)["cosine"] < 0.98


def test_replicas_that_are_averaged_halve_the_gradient() -> None:
    assert measure("averages replicas", replicas=2)["ratio"] == pytest.approx(0.5, abs=1e-4)


def test_replicas_without_a_count_of_their_own_are_left_out_as_torch_leaves_them_out() -> None:
    class Sum(torch.nn.Module):
        def forward(self, ids: Any, count: Any) -> Any:
            return Output(loss=ids.float().sum() / count.sum(), logits=ids)

    replicas = main.make_replicas_class(2)(Sum())
    ids = torch.ones(2, 4)
    assert replicas(ids=ids, count=torch.ones(1)).loss == 4, "one chunk of the count: one replica runs"
    assert replicas(ids=ids, count=torch.ones(2)).loss.tolist() == [4, 4]


def test_what_separates_documents() -> None:
    restarting, running = torch.tensor([[0, 1, 0, 1, 0, 0]]), torch.tensor([[0, 1, 2, 3, 0, 0]])  # padded with zeros
    causal = torch.ones(1, 1, 4, 4).tril().bool()
    blocks = causal & ~torch.tensor([[False, False], [True, False]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert main.separates_documents({"position_ids": restarting})
    assert not main.separates_documents({"position_ids": running, "attention_mask": torch.ones(1, 6)})
    assert main.separates_documents({"cu_seq_lens_q": torch.tensor([0, 2, 4])})
    assert main.separates_documents({"attention_mask": torch.tensor([[1, 1, 2, 2, 0]])})
    assert main.separates_documents({"attention_mask": blocks})
    assert main.separates_documents({"attention_mask": torch.where(blocks, 0.0, -1e9)})
    assert not main.separates_documents({"attention_mask": causal})
    assert not main.separates_documents({"attention_mask": torch.where(causal, 0.0, -1e9)})
