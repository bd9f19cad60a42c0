"""Trains a few steps with and without an interruption, reads two epochs, and starts twice, in forks of the launch.

A fork has the trainer as the launch made it, so that a question takes a few steps and no imports. Processes with a
process group or a GPU are left out: a fork has not their threads (a launch on one GPU runs again without it for these
questions). `continued.json` holds what is compared.

Sources: transformers 5.17.0 trainer.py (`train`, `training_step`, `_save_checkpoint`, `get_train_dataloader`, and
`set_epoch` before each epoch; the same in 4.57.3).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import linecache
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from typing import Any

from . import batches
from .describe import describe_process
from .modules import call_before, describe_code, is_foreign
from .script_code import find_script_frame, name_line

EPOCH = 3  # steps of an epoch, if the launch has more than one
STEPS = {False: (2, 4), True: (EPOCH + 1, 2 * EPOCH)}  # those of the checkpoint and the end: inside the second epoch
SECONDS = 30.0  # for a fork
RECORDED_STEPS, OTHER_SEED = 3, 12345
FORKED: list[int] = []  # this process, if it is a fork
MAX_EPOCHS = 10  # that callbacks begin
READING_SECONDS = 4.0  # for an epoch
LOST = 0.5  # of what the steps before the checkpoint changed: a loaded parameter that differs more is not the saved one
NAMED = 3  # the most parameters in a message
MAX_CALLERS = 2  # of accelerate's function: the script, or accelerate's own method
MAX_HOLDERS = 50  # of samplers, in a loader


def watch_interruptions(recorder: Any, trainer: Any) -> None:
    """Answer the questions in `ATTNCHECK_CONTINUES` of each first Trainer before it trains."""
    questions = os.environ.get("ATTNCHECK_CONTINUES", "").split()
    original, answers = trainer.Trainer.train, dict[str, Any]()

    @functools.wraps(original)
    def train(self: Any, *arguments: Any, **options: Any) -> Any:
        if questions and not answers and can_fork():
            with contextlib.suppress(Exception):  # the trainer continues without the answers
                _answer(_Trial(self, functools.partial(original, self), recorder), questions, answers)
            with open(os.path.join(recorder.folder, "continued.json"), "w") as stream:
                json.dump(answers, stream)
        return original(self, *arguments, **options)

    trainer.Trainer.train = train


def _answer(trial: _Trial, questions: list[str], answers: dict[str, Any]) -> None:
    """Add to `answers` what each fork answers; the second resumes from the first one's checkpoint."""
    answers["asked"] = questions
    trial.has_epochs = "epochs" in questions
    with tempfile.TemporaryDirectory() as folder:
        if "saves" in questions:
            answers["whole"] = run_in_fork(trial.train_whole, folder)
            if "moved" in answers["whole"]:
                answers["resumed"] = run_in_fork(trial.resume, folder)
        if "epochs" in questions and answers.get("whole", True):  # the others ended in time
            answers["epochs"] = run_in_fork(trial.read_epochs, folder)


def watch_skipping(recorder: Any, module: Any) -> None:
    """Compare the batches that a script continues an epoch with, and those of the whole epoch, in forks.

    accelerate 1.15.0 data_loader.py (`skip_first_batches`). A new process has another state of random numbers, unless
    the script loads it. `skipped.json` holds which of the two continuations differs.
    """
    original, answers = module.skip_first_batches, dict[str, Any]()

    @functools.wraps(original)
    def skip(dataloader: Any, num_batches: int = 0) -> Any:
        frame = find_script_frame(sys._getframe(1), MAX_CALLERS)
        if frame is not None and num_batches and not answers and "ATTNCHECK_CONTINUES" in os.environ and can_fork():

            def read(is_whole: bool, is_new: bool, place: str, own: dict[str, Any]) -> None:
                if is_new:
                    _draw_others()
                loader = dataloader if is_whole else original(dataloader, num_batches)
                rows = list(map(digest, loader))
                own["rows"] = rows[num_batches:] if is_whole else rows

            with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
                whole, same, new = (
                    run_in_fork(functools.partial(read, *how), folder).get("rows")
                    for how in ((True, False), (False, False), (False, True))
                )
                text = "".join(linecache.getlines(frame.f_code.co_filename))
                answers.update(
                    line=name_line(frame), differs=same != whole, drawn=new != same, loads="load_state" in text
                )
                if whole and same and new:
                    with open(os.path.join(recorder.folder, "skipped.json"), "w") as stream:
                        json.dump(answers, stream)
        return original(dataloader, num_batches)

    module.skip_first_batches = skip


def _draw_others() -> None:
    """Set the states of random numbers that another process may have."""
    sys.modules["torch"].manual_seed(OTHER_SEED)
    for module in (random, sys.modules.get("numpy.random", random)):
        module.seed(OTHER_SEED)


def watch_start(recorder: Any, model_class: Any, names: Collection[str]) -> None:
    """Start a second time with another state of random numbers, if none was seeded before the first model is made.

    Both runs set the same seed later. The fork waits until the launch has taken its recorded steps, so that neither is
    in the other's way, and ends at its first loss. `start.json` holds the parameters whose first values differ.
    """
    if "start" not in os.environ.get("ATTNCHECK_CONTINUES", "").split():
        return
    torch, states = sys.modules["torch"], list[_Start]()
    seed = int(os.environ.get("ATTNCHECK_SEED", 0))  # of the watcher, in `hooks.py`

    def begin() -> None:
        with contextlib.suppress(Exception):
            if not states and can_fork() and torch.initial_seed() == seed:
                states.append(_Start(recorder))

    for name in names:
        function = vars(model_class)[name].__func__
        setattr(model_class, name, classmethod(call_before(function, begin)))


class _Start:
    """The first values of the launch's parameters, and in a fork those of a second start."""

    def __init__(self, recorder: Any) -> None:
        from torch.optim import optimizer

        torch: Any = sys.modules["torch"]
        self._recorder, self._steps, self._values = recorder, 0, dict[str, str]()
        self._go, self._path = os.pipe(), os.path.join(recorder.folder, "start.json")
        torch.Tensor.backward = call_before(torch.Tensor.backward, self._keep_values)
        optimizer.register_optimizer_step_post_hook(self._count_step)
        self._process = os.fork()
        self._is_second = not self._process
        if self._is_second:
            self._begin_again()

    def _begin_again(self) -> None:
        """Wait, and continue with other random numbers and without a record or output."""
        try:
            os.close(self._go[1])
            if not os.read(self._go[0], 1):  # the launch ended earlier
                os._exit(0)
            leave_records()
            self._recorder.folder = os.devnull  # nothing is written before the first loss
            signal.alarm(int(SECONDS))
            _draw_others()
        except BaseException:
            os._exit(1)

    def _keep_values(self) -> None:
        with contextlib.suppress(Exception):  # the launch continues without the answer
            if not self._values and (self._is_second or not FORKED):
                self._values = self._read_values()
                if self._is_second:
                    with open(self._path, "w") as stream:
                        json.dump(self._values, stream)
                    os._exit(0)

    def _read_values(self) -> dict[str, str]:
        models = [model for model in self._recorder.models if any(p.requires_grad for p in model.parameters())]
        named = [(f"{n}.{name}", value) for n, model in enumerate(models) for name, value in model.named_parameters()]
        return {name: digest(value.float()) for name, value in named}

    def _count_step(self, *arguments: Any) -> None:
        if FORKED:
            return
        self._steps += 1
        if self._steps == RECORDED_STEPS:
            os.write(self._go[1], b"1")
            os.waitpid(self._process, 0)
            self._compare()

    def _compare(self) -> None:
        """Replace the values of the second start by the names of those that differ."""
        if os.path.exists(self._path):
            with open(self._path) as stream:
                second = json.load(stream)
            names = [name.partition(".")[2] for name, value in self._values.items() if second.get(name) != value]
            with open(self._path, "w") as stream:
                json.dump({"different": names}, stream)


def can_fork() -> bool:
    """Return whether a fork of this process can train: it has no group of ranks, and no GPU."""
    torch, process = sys.modules["torch"], describe_process()
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    return process["world_size"] == 1 and not (FORKED or has_group or torch.cuda.is_initialized())


def run_in_fork(answer: Callable[[str, dict[str, Any]], None], folder: str) -> dict[str, Any]:
    """Return what a function answers in a fork, with its error if it raised one; {} if it did not end in time."""
    path = os.path.join(folder, "answer")
    process = os.fork()
    if not process:
        answers: dict[str, Any] = {}
        try:
            leave_records()
            try:
                answer(folder, answers)
            except BaseException as error:
                text = "".join(traceback.format_exception_only(error)).strip()
                places = [
                    f"{os.path.basename(f.filename)}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)
                ]
                answers |= {"error": text, "place": places[-1] if places else ""}
            with open(f"{path}.part", "w") as file:
                json.dump(answers, file)
            os.rename(f"{path}.part", path)
        finally:
            os._exit(0)
    usage = wait_for(process)
    if not os.path.exists(path):
        return {}
    with open(path) as stream:
        result: dict[str, Any] = json.load(stream)
    os.remove(path)
    return result | {"seconds": round(usage.ru_utime + usage.ru_stime, 2)}


def wait_for(process: int, seconds: float = SECONDS) -> Any:
    """Return a fork's use of resources; it is killed if it does not end in time."""
    began, ended = time.monotonic(), 0
    while not ended:
        ended, _, usage = os.wait4(process, os.WNOHANG)
        time.sleep(0.02)
        if not ended and time.monotonic() - began > seconds:
            os.kill(process, signal.SIGKILL)
    return usage


def leave_records() -> None:
    """Let a fork print nothing and record no data set, and answer no further questions."""
    FORKED.append(os.getpid())
    batches.MAX_LOADERS = 0
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


class _Trial:
    """A trainer of a fork, which takes a few steps."""

    def __init__(self, trainer: Any, train: Callable[..., Any], recorder: Any) -> None:
        self.trainer, self._train, self._recorder = trainer, train, recorder
        self.has_epochs = False
        self._answers: dict[str, Any] = {}
        self._weights: list[dict[str, Any]] = []  # before the first step, and before the first after the checkpoint

    def train_whole(self, folder: str, answers: dict[str, Any]) -> None:
        """Take all steps, with a checkpoint, and keep the weights at the checkpoint and at the end."""
        import torch

        self._prepare(folder, answers, "steps")
        saved = STEPS[self.has_epochs][0]
        self._run(saved * self.trainer.args.gradient_accumulation_steps)
        answers |= {"steps": STEPS[self.has_epochs], "is_second_epoch": self.has_epochs}
        if len(self._weights) > 1:
            torch.save((*self._weights, self._read_weights()), os.path.join(folder, "weights"))
            if os.path.isdir(os.path.join(folder, f"checkpoint-{saved}")):
                answers["moved"] = _measure_all(self._read_weights(), self._weights[1])

    def resume(self, folder: str, answers: dict[str, Any]) -> None:
        """Take the steps after the checkpoint, and compare the weights with those of the other fork."""
        import torch

        self._prepare(folder, answers, "no")
        first, saved, end = torch.load(os.path.join(folder, "weights"))
        number = STEPS[self.has_epochs][0]
        self._run(-1, resume_from_checkpoint=os.path.join(folder, f"checkpoint-{number}"))
        loaded = self._weights[0]
        names = [name for name in saved if name in loaded]
        lost = [name for name in names if _measure(name, loaded, saved) > LOST * _measure(name, first, saved) > 0]
        answers["lost"] = [f"{len(lost)} of {len(saved)} parameters", *lost[:NAMED]] if lost else []
        answers["drift"] = _measure_all(self._read_weights(), end)

    def read_epochs(self, folder: str, answers: dict[str, Any]) -> None:
        """Read the rows of two epochs from a loader, and whether its sampler or stream shuffles."""
        self._recorder.is_paused = True
        loader, orders = self.trainer.get_train_dataloader(), []
        for epoch in range(2):
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)
            began, rows = time.monotonic(), list[str]()
            for batch in loader:
                rows.append(digest(batch))
                if time.monotonic() - began > READING_SECONDS:
                    return
            orders.append(rows)
        answers["shuffles"] = _shuffles(loader)
        answers["epochs"] = [len(rows) for rows in orders]
        answers["same"] = orders[0] == orders[1] and len({*orders[0]}) > 2  # not of equal rows, the last of them fewer
        with contextlib.suppress(Exception):  # as a training does before its callbacks
            self.trainer.create_optimizer()
        for epoch in range(MAX_EPOCHS):
            self._begin_epoch(epoch, answers)

    def _begin_epoch(self, epoch: int, answers: dict[str, Any]) -> None:
        """Let the callbacks begin an epoch, and note those that give the trainer what it does not use.

        It reads no other rows, and its optimiser has the parameters that were trained when it was made.
        transformers 5.17.0 trainer.py (`_inner_training_loop` makes the loader once; the same in 4.57.3).
        """
        trainer, handler = self.trainer, self.trainer.callback_handler
        trainer.state.epoch = float(epoch)
        for callback in filter(lambda own: is_foreign(own.on_epoch_begin), handler.callbacks):
            held = trainer.train_dataset
            with contextlib.suppress(Exception):  # of what a training sets before
                given = {"model": trainer.model, "optimizer": trainer.optimizer, "lr_scheduler": None}
                callback.on_epoch_begin(trainer.args, trainer.state, trainer.control, **given)
            if trainer.optimizer is not None and "thawed" not in answers:
                trained = [value for value in trainer.model.parameters() if value.requires_grad]
                held_values = {id(value) for group in trainer.optimizer.param_groups for value in group["params"]}
                lost = sum(id(value) not in held_values for value in trained)
                if lost and epoch:
                    code = describe_code(callback.on_epoch_begin)
                    text = f"{lost} of {len(trained)} parameters that train in epoch {epoch + 1}, by {code}, are in no"
                    answers["thawed"] = f"{text} group of the optimiser, which is made once: they stay as they are"
            if trainer.train_dataset is not held:
                answers["unread"] = describe_code(callback.on_epoch_begin)

    def _prepare(self, folder: str, answers: dict[str, Any], strategy: str) -> None:
        self._recorder.is_paused, self._answers = True, answers
        self._recorder.randomness.switch_off(self.trainer.model)
        answers |= {"part": "start", "rows": [], "losses": [], "rates": []}
        args, (saved, last) = self.trainer.args, STEPS[self.has_epochs]
        if self.has_epochs:
            count = EPOCH * args.per_device_train_batch_size * args.gradient_accumulation_steps
            self.trainer.train_dataset = shorten(self.trainer.train_dataset, count)
        settings = {
            "max_steps": last,
            "save_steps": saved,
            "save_strategy": type(args.save_strategy)(strategy),
            "eval_strategy": type(args.eval_strategy)("no"),
            "load_best_model_at_end": False,
            "output_dir": folder,
            "max_epochs": None,  # read by a callback that importing ms-swift installs for every Trainer
        }
        for name, value in settings.items():
            setattr(args, name, value)

    def _run(self, kept: int, **options: Any) -> None:
        """Train, and record each batch; the weights are kept before the first, and before number `kept`."""
        answers, step, save = self._answers, self.trainer.training_step, self.trainer._save_checkpoint

        def take(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            answers["part"] = "step"
            if len(answers["rows"]) in (0, kept):
                self._weights.append(self._read_weights())
            answers["rows"].append(digest(inputs))
            answers["rates"].append([float(group["lr"]) for group in self.trainer.optimizer.param_groups])
            loss = step(model, inputs, *arguments, **named)
            answers["losses"].append(float(loss))
            return loss

        def keep(*arguments: Any, **named: Any) -> Any:
            answers["part"] = "save"
            result = save(*arguments, **named)
            answers["part"] = "step"
            return result

        self.trainer.training_step, self.trainer._save_checkpoint = take, keep
        answers["part"] = "load" if options else "start"
        self._train(**options)
        answers["part"] = "end"

    def _read_weights(self) -> dict[str, Any]:
        own = self.trainer.model.named_parameters()
        return {name: value.detach().clone() for name, value in own if value.requires_grad}


def shorten(rows: Any, count: int) -> Any:
    """Return the first rows of a data set, or all if it is a stream, which has no numbers."""
    if not hasattr(rows, "__len__"):
        return rows
    numbers = range(min(count, len(rows)))
    return rows.select(numbers) if hasattr(rows, "select") else sys.modules["torch"].utils.data.Subset(rows, numbers)


def _measure(name: str, own: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the distance between the values that two models have for a name."""
    return float((own[name].float() - other[name].float()).norm())


def _measure_all(own: dict[str, Any], other: dict[str, Any]) -> float:
    return float(sum(_measure(name, own, other) ** 2 for name in own if name in other) ** 0.5)


def write_answer(folder: str, kind: str, record: dict[str, Any]) -> None:
    """Write `kind-N.json`, the next answer of its kind."""
    number = len([name for name in os.listdir(folder) if name.startswith(f"{kind}-")])
    with open(os.path.join(folder, f"{kind}-{number}.json"), "w") as stream:
        json.dump(record, stream)


def digest(value: Any) -> str:
    """Return a short digest: equal for equal tensors, arrays, lists and numbers."""
    return hashlib.sha256(_format(value).encode()).hexdigest()[:16]


def _format(value: Any) -> str:
    if hasattr(value, "detach"):  # weights would take long as text
        own = value.detach().cpu().contiguous().flatten()
        numbers = hashlib.sha256(own.view(sys.modules["torch"].uint8).numpy().tobytes())
        return f"{tuple(value.shape)} {numbers.hexdigest()}"
    if hasattr(value, "tolist"):
        return str(value.tolist())
    if hasattr(value, "items"):
        return str([(str(name), _format(own)) for name, own in sorted(value.items())])
    return str([_format(own) for own in value]) if isinstance(value, (list, tuple)) else str(value)


def _shuffles(loader: Any) -> bool:
    """Return whether a loader's sampler, or the stream of datasets that it reads, shuffles."""
    torch, holders, known = sys.modules["torch"], [loader], list[Any]()
    names = ("base_dataloader", "sampler", "batch_sampler", "dataset", "_ex_iterable", "ex_iterable", "_dataset")
    while holders and len(known) < MAX_HOLDERS:
        known.append(holder := holders.pop())
        is_random = isinstance(holder, torch.utils.data.RandomSampler) or getattr(holder, "shuffle", None) is True
        if is_random or type(holder).__name__ == "BufferShuffledExamplesIterable":
            return True
        parts = (vars(holder).get(name) for name in names if hasattr(holder, "__dict__"))
        holders += [part for part in parts if part is not None and not any(part is own for own in known)]
    return False
