"""Updates TRL's policy with synthetic completions: its own trainer, data path and loss; nothing is generated.

Sources: trl 1.16.0 trainer/grpo_trainer.py. `_generate_single_turn` calls the model's `generate`, and keeps the tokens
after the prompt, up to its EOS token. `compute_loss` gets a batch's `prompt_ids`, `completion_ids`, masks and
`advantages`. 0.16.1 to 0.27.0 do the same, with other names for `_get_per_token_logps`. transformers 5.17.0
generation/utils.py: `GenerationMixin.generate`, which PEFT's models also call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attncheck_drivers.rollouts import Rollout, RolloutRecord, read_documents  # type: ignore[import-not-found]
from attncheck_watcher.modules import describe_code, is_foreign  # type: ignore[import-not-found]
from attncheck_watcher.objective import ask_policy_loss  # type: ignore[import-not-found]
from attncheck_watcher.own_rows import is_own, judge_rewards  # type: ignore[import-not-found]
from attncheck_watcher.randomness import keep_randomness  # type: ignore[import-not-found]
from attncheck_watcher.script_code import CODE  # type: ignore[import-not-found]

LOG_PROBABILITIES = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")
# The setting of several rewards, and the value with which one is the sum (trl 1.16.0 trainer/grpo_config.py).
AGGREGATION = ("multi_objective_aggregation", "sum_then_normalize")
TENSORS = {"advantages", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask"}  # of a batch
WORD = re.compile(r"w(\d+)")  # decoded without spaces by some tokenizer classes
REWARD_SECONDS = 5.0  # for calling a script's reward functions, which may wait for a server


class Completions:
    """The synthetic completions: for each prompt a rewarded one and an unrewarded one, identified by their words."""

    def __init__(self, documents: list[Mapping[str, Any]]) -> None:
        turns = [document["turns"] for document in documents]
        self.rewarded = {tuple(answer) for (_, (_, answer)) in turns[::2]}
        self.known = {word for turn in turns for _, words in turn for word in words}
        self.numbers: dict[tuple[int, ...], int] = {}
        self._answers: dict[tuple[int, ...], list[list[int]]] = {}
        for number, ((_, question), (_, answer)) in enumerate(turns):
            response = documents[number].get("response", answer)
            words = (*question, *self.read(response))
            self.numbers[words] = number
            self._answers.setdefault(tuple(question), []).append(response)
        self.are_whole = "response" in documents[0]  # an engine's responses, with their EOS token if they have one
        self._given: Counter[tuple[int, ...]] = Counter()
        self.functions: Sequence[Any] = ()  # the script's own, until they were called

    def read(self, tokens: list[int]) -> tuple[int, ...]:
        """Return the words among tokens; a word's number is its token."""
        return tuple(token for token in tokens if token in self.known)

    def next(self, prompt: list[int]) -> list[int]:
        """Return the next completion of a prompt, given as tokens; empty for a prompt that belongs to no document."""
        question = self.read(prompt)
        answers = self._answers.get(question, [[]])
        self._given[question] += 1
        return answers[(self._given[question] - 1) % len(answers)]

    def reward(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """Return 1 for each completion that is its prompt's rewarded one, otherwise 0."""
        functions, self.functions = self.functions, ()
        values = {"prompts": prompts, "completions": completions, **columns}
        if functions:
            thread = threading.Thread(target=note_misplaced, args=(functions, values), daemon=True)
            with keep_randomness():
                thread.start()
                thread.join(REWARD_SECONDS)
        texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
        return [float(tuple(map(int, WORD.findall(text))) in self.rewarded) for text in texts]


COMPLETIONS = Completions(read_documents())


def note_misplaced(functions: Sequence[Any], columns: Mapping[str, Any]) -> None:
    """Note the script's reward functions that return the right rewards for the wrong completions, or depend on places.

    Each gets completions of different lengths and formats, all at once and one by one. Rewards may depend on a group
    or on chance: only the same rewards in another order are a fault. If the halves of all change places, so should
    the rewards, but a function may choose by place. One that takes messages for texts returns the same for all of them,
    and another reward for their texts.
    """
    given, count = len(columns["completions"]), 4 * len(columns["completions"])  # a batch may be a single group
    halves = [*range(count // 2, count), *range(count // 2)]
    rows = {
        key: value * 2 + value[-1:] * (count // 2)  # halves with other rows
        for key, value in columns.items()
        if isinstance(value, list) and len(value) == given
    }
    others = {key: (lambda *_, **__: None) if callable(value) else value for key, value in columns.items()}
    texts: list[Any] = []
    plain: list[str] = []
    for number, completion in enumerate(rows["completions"]):
        values = [str(own[number]) for own in rows.values() if isinstance(own[number], (str, int))]
        gap, answer = " " * (number % 3), " ".join(values[-3:]) if number**2 % 11 % 2 and values else number
        text = f"<think>{'w1 ' * (7 * number % 11 + 1)}</think><answer>{gap}{answer}{gap}</answer>"
        plain.append(text)
        texts.append(text if isinstance(completion, str) else [{**completion[-1], "content": text}])
    rows["completions"] = texts
    until = time.monotonic() + REWARD_SECONDS

    def call(function: Any, chosen: Sequence[int], **changed: Sequence[Any]) -> list[float]:
        if time.monotonic() > until:  # the training goes on: the script must not run alongside it for long
            raise TimeoutError
        given = {key: [own[n] for n in chosen] for key, own in (rows | changed).items()}
        return list(map(float, function(**{**others, **given})))

    for function in filter(is_foreign, functions):
        with contextlib.suppress(Exception):
            together, moved, again = (call(function, numbers) for numbers in (range(count), halves, range(count)))
            if len(together) != count or any(map(math.isinf, together)):
                CODE.setdefault("uncounted", []).append(describe_code(function))
                continue
            if texts != plain and len({*together}) == 1 and call(function, range(count), completions=plain) != together:
                CODE.setdefault("as_texts", []).append(describe_code(function))
            if together == again and max(abs(own - together[n]) for own, n in zip(moved, halves)) > 1e-6:  # rounding
                alone = [call(function, [number])[0] for number in range(count)]
                is_misplaced = together != alone and sorted(together) == sorted(alone)
                last = {str(prompt): alone[n] for n, prompt in enumerate(rows.get("prompts", ()))}
                is_merged = len({*alone}) > 1 and together == [last[str(prompt)] for prompt in rows.get("prompts", ())]
                kind = "misplaced" if is_misplaced else "merged" if is_merged else "placed"
                CODE.setdefault(kind, []).append(describe_code(function))


def replace_generation(module: Any) -> None:
    """Make models generate the synthetic completions, each with its EOS token, padded on the right."""

    def generate(model: Any, inputs: Any = None, generation_config: Any = None, **options: Any) -> Any:
        prompts = options.get("input_ids", inputs)
        config = generation_config or model.generation_config
        # transformers 4.49.0 generation/utils.py completes a given configuration by the model's
        ends, pad = config.eos_token_id or model.generation_config.eos_token_id, config.pad_token_id
        end = ends[0] if isinstance(ends, (list, tuple)) else ends
        ending = () if COMPLETIONS.are_whole else (int(end),)
        rows = [torch.tensor([*COMPLETIONS.next(prompt.tolist()), *ending]) for prompt in prompts]
        answers = torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=int(end if pad is None else pad)
        )
        sequences = torch.cat([prompts, answers.to(prompts.device)], dim=1)
        return {"sequences": sequences} if getattr(config, "return_dict_in_generate", False) else sequences

    module.GenerationMixin.generate = generate


def take_over(module: Any) -> None:
    """Make a module's policy trainer reward the synthetic completions, and record the inputs of its loss."""
    for trainer in (getattr(module, name, None) for name in ("GRPOTrainer", "RLOOTrainer")):
        if trainer is not None:
            _replace_rewards(trainer)
            _record_losses(trainer)


def take_over_copies(module: Any) -> None:
    """Take over the policy trainers that a script defines itself, often copies of TRL's, when their class is made."""
    base = module.Trainer  # which has no such method itself

    def initialize(kind: Any, /, **options: Any) -> None:
        super(base, kind).__init_subclass__(**options)
        make = vars(kind).get("__init__")
        is_policy = make is not None and "reward_funcs" in inspect.signature(make).parameters
        if is_policy and is_foreign(make, "trl"):  # not TRL's own, wherever its source is
            _replace_rewards(kind)
            if "compute_loss" in vars(kind):
                _record_losses(kind)

    base.__init_subclass__ = classmethod(initialize)


def reward_ms_swift(module: Any) -> None:
    """Make ms-swift's trainer (4.6.0 rlhf_trainers/grpo_trainer.py) reward the synthetic completions.

    In 3.12.0 trainers/rlhf_trainer/grpo_trainer.py:325 rows are dictionaries, and the caller gathers.
    """
    gathers = "gather(" in inspect.getsource(module.GRPOTrainer._compute_rewards_per_func)

    def compute(trainer: Any, samples: Any) -> Any:
        messages = [own["messages"] if isinstance(own, dict) else own.messages for own in samples]
        values = COMPLETIONS.reward(None, messages)
        rewards = torch.tensor(values, device=trainer.accelerator.device)[:, None].repeat(1, len(trainer.reward_funcs))
        return module.gather(rewards) if gathers else rewards

    module.GRPOTrainer._compute_rewards_per_func = compute


def _replace_rewards(trainer: Any) -> None:
    original = trainer.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(self: Any, *arguments: Any, **options: Any) -> None:
        bound = signature.bind(self, *arguments, **options)
        own = bound.arguments.get("reward_funcs") or []
        if is_own():
            judge_rewards(own, bound.arguments.get("train_dataset"))
        COMPLETIONS.functions = own if isinstance(own, list) else [own]
        bound.arguments["reward_funcs"] = COMPLETIONS.reward
        for name in ("reward_processing_classes", "rollout_func"):
            bound.arguments.pop(name, None)
        if bound.arguments.get("args") is not None:
            bound.arguments["args"].reward_weights = None
        original(*bound.args, **bound.kwargs)

    trainer.__init__ = initialize


def _record_losses(trainer: Any) -> None:
    """Record the completions of each step, their advantages and log-probabilities."""
    seen: list[Any] = []  # log-probabilities with gradients
    step: list[tuple[Rollout, list[float]]] = []
    records: list[RolloutRecord] = []
    probed: list[None] = []
    start, original = trainer.__init__, trainer.compute_loss

    @functools.wraps(start)
    def initialize(self: Any, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        args = getattr(self, "args", None)
        is_plain = getattr(args, *AGGREGATION) == AGGREGATION[1] and getattr(self, "num_generations", 0) == 2
        if is_plain and type(self).__module__.startswith("trl."):
            CODE["scaling"] = [str(getattr(args, "scale_rewards", ""))]
        for name in LOG_PROBABILITIES:
            if hasattr(self, name):  # its class may override TRL's
                setattr(self, name, _keep_result(getattr(self, name), seen))

    @functools.wraps(original)
    def compute_loss(self: Any, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        seen.clear()
        if torch.is_grad_enabled() and not probed and isinstance(inputs, Mapping) and inputs.keys() >= TENSORS:
            probed.append(None)
            compute = lambda own: original(self, model, own, *arguments, **options)
            with contextlib.suppress(Exception):
                method = next(filter(vars(self).__contains__, LOG_PROBABILITIES))
                ask_policy_loss(os.environ["ATTNCHECK_WATCH"], self, method, compute, inputs)
        loss = original(self, model, inputs, *arguments, **options)
        if torch.is_grad_enabled() and isinstance(inputs, Mapping) and inputs.keys() >= TENSORS:
            step.extend(_list_rollouts(inputs, seen[-1] if seen else None))
            if self.accelerator.sync_gradients:
                if not records:
                    records.append(RolloutRecord(self.accelerator.process_index))
                records[0].add_step([rollout for rollout, _ in step], [values for _, values in step])
                step.clear()
        return loss

    trainer.__init__, trainer.compute_loss = initialize, compute_loss


def _keep_result(function: Any, seen: list[Any]) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        values = result[0] if isinstance(result, tuple) else result
        if isinstance(values, dict):
            values = values.get("logps")
        if torch.is_tensor(values) and values.requires_grad:
            seen.append(values.detach())
        return result

    return call


def _list_rollouts(inputs: Any, log_probabilities: Any) -> list[tuple[Rollout, list[float]]]:
    """Return the rows of a batch that are documents, each with the log-probabilities of its completion's tokens.

    There are none if a script's own loss computes them without TRL's method.
    """
    rollouts = []
    for row, advantage in enumerate(inputs["advantages"].flatten().tolist()):
        mask = inputs["completion_mask"][row].bool()
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
        response = inputs["completion_ids"][row][mask].tolist()
        number = COMPLETIONS.numbers.get(COMPLETIONS.read([*prompt, *response]))
        if number is not None:
            values = [] if log_probabilities is None else log_probabilities[row][mask].float().tolist()
            rollouts.append((Rollout(number, tuple(prompt), tuple(response), advantage), values))
    return rollouts
