"""Launches of released frameworks, rehearsed for real: clean ones give no finding, a fault in the framework is named.

ATTNCHECK_REHEARSAL_PYTHONS is a folder of virtual environments, one for each framework by its name here, each with that
framework's release and what it requires; what is not there is skipped. LLaMA-Factory 0.9.5 wants transformers 5.5 or
older (5.6.0 has no flash attention: `s_aux`), ms-swift 4.6.0 trl 0.29, axolotl 0.19.0 transformers 5.16.1 and
bitsandbytes, OpenRLHF 0.11.2 transformers 5.15.0 and deepspeed 0.19.6, verl 0.9.1 transformers 5.9. verl_old 0.5.0,
verl_061 0.6.1, openrlhf_08 0.8.9 and openrlhf_06 0.6.4 want transformers 4.56. No GPU is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.lint.frameworks import test_rehearsal_cuts as launches
from tests.rehearsal import own_models
from tests.smoke.multimodal_configs import CONFIGS

pytestmark = pytest.mark.nightly
FOLDER = os.environ.get("ATTNCHECK_REHEARSAL_PYTHONS", "")
REPOSITORY = Path(__file__).parents[2]
PLANTS = Path(__file__).parent / "plants"
PACKED_LLAMAFACTORY = launches.LLAMAFACTORY + "neat_packing: true\n"
JOB, LLAVA = "./job", "./llava"  # models of pictures and text
PICTURES = launches.LLAMAFACTORY.replace("Qwen/Qwen2.5-0.5B-Instruct", JOB).replace("bf16: true", "bf16: false")
PICTURES = PICTURES.replace("template: qwen", "template: qwen2_vl")
MS_SWIFT_PICTURES = (
    f"swift sft --model {LLAVA} --model_type llava1_5_hf --dataset data.jsonl --output_dir output "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_length 2048 --torch_dtype float32\n"
)
# Its template embeds the tokens itself, and resizes images with a library of its own.
MS_SWIFT_QWEN = (
    MS_SWIFT_PICTURES.replace(LLAVA, f"{JOB} --template qwen2_vl").replace("llava1_5_hf", "qwen2_vl").rstrip()
)
MS_SWIFT_PACKED_QWEN = MS_SWIFT_QWEN.replace("--torch_dtype float32", "--attn_impl flash_attn --packing true")
AXOLOTL_LABELS = 'batch["labels"] = self.processing_strategy.process_labels(batch["input_ids"])'
AXOLOTL_TOKEN = "self.processing_strategy.image_token_id"
AXOLOTL_PICTURES = launches.AXOLOTL_PICTURES.replace("Qwen/Qwen2-VL-7B-Instruct", JOB)
# Steps of one batch: axolotl 0.17 to 0.19 averages batches, not tokens, which a test below shows.
AXOLOTL = launches.AXOLOTL.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1")
FULL_AXOLOTL = AXOLOTL.replace("adapter: qlora\n", "").replace("load_in_4bit: true\n", "")
ULYSSES = launches.MS_SWIFT.replace("--packing true", "--packing true --sequence_parallel_size 2")
GPG = "actor_rollout_ref.actor.policy_loss.loss_mode=gpg actor_rollout_ref.actor.loss_agg_mode=token-sum"
DYNAMIC = "actor_rollout_ref.actor.use_dynamic_bsz=True"
FLOAT32 = (
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32 actor_rollout_ref.rollout.temperature=0.7 "
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa "
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
)
OPENRLHF_PADDED = launches.OPENRLHF_PPO.replace("--ds.packing_samples", "--actor.loss_agg_mode seq-mean-token-mean")
OPENRLHF_PADDED = OPENRLHF_PADDED.replace("--ds.zero_stage 2", "--ds.zero_stage 3")
OLD_OPENRLHF_PADDED = launches.OLD_OPENRLHF_PPO.replace("--packing_samples ", "")
RING = f"{launches.OPENRLHF.rstrip()} --ds.ring_attn_size 2\n"
VERL = launches.VERL.replace("ulysses_sequence_parallel_size=2", "ulysses_sequence_parallel_size=1")
OLD_VERL = launches.OLD_VERL.replace(" ulysses_sequence_parallel_size=2 use_remove_padding=true", "")
OLD_VERL_TURNS = f"{OLD_VERL.rstrip()} data.multiturn.enable=true\n"
TRL_PICTURES = (
    f"trl sft --model_name_or_path {JOB} --dataset_name own/data --output_dir out --max_length 4096 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 2\n"
)
CLEAN: Mapping[str, tuple[str, str]] = {
    "llamafactory-padded": ("llamafactory", launches.LLAMAFACTORY),
    "llamafactory-packed": ("llamafactory", PACKED_LLAMAFACTORY),
    "llamafactory-pictures": ("llamafactory", PICTURES),
    "llamafactory-uncached-pictures": ("llamafactory", PICTURES.replace(JOB, "Qwen/Qwen2-VL-2B-Instruct")),
    "llamafactory-pictures-packed": ("llamafactory", PICTURES + "neat_packing: true\n"),
    "llamafactory-prompts": ("llamafactory", launches.LLAMAFACTORY + "train_on_prompt: true\n"),
    "llamafactory-flash": (
        "llamafactory",
        PACKED_LLAMAFACTORY.replace("batch_size: 4", "batch_size: 1") + "flash_attn: fa2\n",
    ),
    "ms-swift-packed": ("ms_swift", launches.MS_SWIFT),
    "ms-swift-padding-free": ("ms_swift", launches.MS_SWIFT.replace("--packing", "--padding_free")),
    "ms-swift-padded": (
        "ms_swift",
        launches.MS_SWIFT.replace("--packing true", "").replace("--attn_impl flash_attn", ""),
    ),
    "ms-swift-pictures": ("ms_swift", MS_SWIFT_PICTURES),
    "ms-swift-qwen-pictures": ("ms_swift", f"{MS_SWIFT_QWEN} --tuner_type full"),
    "ms-swift-qwen-pictures-lora": ("ms_swift", MS_SWIFT_QWEN),
    "ms-swift-qwen-pictures-packed": ("ms_swift", MS_SWIFT_PACKED_QWEN),
    "ms-swift-qwen-pictures-padding-free": (
        "ms_swift",
        f"{MS_SWIFT_PACKED_QWEN.replace('--packing', '--padding_free')} --tuner_type full",
    ),
    "ms-swift-pretraining": ("ms_swift", launches.MS_SWIFT.replace("swift sft", "swift pt")),
    "ms-swift-dpo": ("ms_swift", launches.MS_SWIFT_DPO),
    "axolotl-packed": ("axolotl", FULL_AXOLOTL),
    "axolotl-pictures": ("axolotl", AXOLOTL_PICTURES),
    "axolotl-lora": ("axolotl", AXOLOTL),
    "axolotl-chat": ("axolotl", FULL_AXOLOTL.replace("type: alpaca", "type: chat_template\nchat_template: llama3")),
    "openrlhf-packed": ("openrlhf", launches.OPENRLHF),
    "llamafactory-dpo": ("llamafactory", launches.LLAMAFACTORY_DPO),
    "openrlhf-dpo-packed": ("openrlhf", launches.OPENRLHF_DPO),
    "openrlhf-dpo-padded": ("openrlhf", launches.OPENRLHF_DPO.replace("--ds.packing_samples", "--model.ipo_enable")),
    "openrlhf-padded": ("openrlhf", launches.OPENRLHF.replace("--ds.packing_samples", "--ds.zero_stage 3")),
    "trl-dpo": ("trl", launches.TRL_DPO),
    "trl-dpo-precomputed": ("trl", f"{launches.TRL_DPO.rstrip()} --precompute_ref_log_probs --bf16 false"),
    "trl-dpo-ipo": ("trl", f"{launches.TRL_DPO.rstrip()} --loss_type ipo"),
    "trl022-dpo": ("trl022", launches.TRL_DPO),
    "trl022-dpo-padding-free": (
        "trl022",
        f"{launches.TRL_DPO.rstrip()} --padding_free --attn_implementation flash_attention_2",
    ),
    "ms-swift-ulysses": ("ms_swift", ULYSSES),
    "openrlhf-ppo": ("openrlhf", launches.OPENRLHF_PPO),
    "openrlhf-ppo-padded": ("openrlhf", OPENRLHF_PADDED),
    "openrlhf-08-ppo": ("openrlhf_08", launches.OLD_OPENRLHF_PPO),
    "openrlhf-08-ppo-padded": ("openrlhf_08", OLD_OPENRLHF_PADDED),
    "openrlhf-06-ppo": ("openrlhf_06", launches.OLD_OPENRLHF_PPO),
    "openrlhf-06-ppo-padded": ("openrlhf_06", OLD_OPENRLHF_PADDED),
    "verl-grpo": ("verl", launches.VERL_GRPO),
    "verl-grpo-padded": ("verl", launches.VERL_GRPO.replace("use_remove_padding=True", "use_remove_padding=False")),
    "verl-dapo": ("verl", launches.VERL_DAPO),
    "verl-gpg-sum": ("verl", launches.VERL_GRPO.replace("$@", GPG)),
    "verl-old-grpo": ("verl_old", launches.VERL_GRPO),
    "verl-old-grpo-padded": (
        "verl_old",
        launches.VERL_GRPO.replace("remove_padding=True", "remove_padding=False").replace("$@", DYNAMIC),
    ),
    "verl-grpo-float32": ("verl", launches.VERL_GRPO.replace("$@", FLOAT32)),
    "openrlhf-ring": ("openrlhf", RING),
    "openrlhf-ring-zero-3": ("openrlhf", f"{RING.rstrip()} --ds.zero_stage 3\n"),
    "verl-no-padding": ("verl", VERL),
    "verl-padded-model": ("verl", VERL.replace("use_remove_padding=True", "use_remove_padding=False")),
    "verl-ulysses": ("verl", launches.VERL),
}
VERL_TOKEN_MEAN = "loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens * dp_size"
# launch, what is planted as "module\nold\nnew", the finding's code, what its message says
FAULTS: Mapping[str, tuple[str, str, str, str]] = {
    "llamafactory-mask": (
        "llamafactory-packed",
        'llamafactory.data.collator\nif self.block_diag_attn and self.attn_implementation != "flash_attention_2":'
        "\nif False:",
        "ATN432",
        "attend to earlier documents in the row",
    ),
    # As hiyouga/LlamaFactory#7754 and NVIDIA-NeMo/Automodel#2172: packed documents get positions of text alone.
    "llamafactory-picture-positions": (
        "llamafactory-pictures-packed",
        "llamafactory.data.collator\nself._compute_rope_position_ids(subseq_features, mm_inputs_for_subseq)\n"
        'subseq_features["position_ids"] = torch.arange(subseq_end - subseq_start).expand(3, 1, -1)',
        "ATN432",
        "",
    ),
    "ms-swift-positions": (
        "ms-swift-packed",
        "swift.template.base\npacked['position_ids'] = sum((list(range(x)) for x in length), start=[])"
        "\npacked['position_ids'] = list(range(sum(length)))",
        "ATN432",
        "attend to earlier documents in the row",
    ),
    "ms-swift-other-picture": (
        "ms-swift-pictures",
        "swift.template.base\nres['pixel_values'] = torch.concat(pixel_values)\n"
        "res['pixel_values'] = torch.concat(pixel_values).flip(0)",
        "ATN432",
        "its image belongs to another document",
    ),
    "ms-swift-learned-pictures": (
        "ms-swift-pictures",
        "swift.template.templates.llava\nlabels[:added_tokens_len + idx] + [-100] * num_image_tokens\n"
        "labels[:added_tokens_len + idx] + [self.image_token_index] * num_image_tokens",
        "ATN433",
        "",
    ),
    **{
        f"ms-swift-qwen-{name}": (f"ms-swift-qwen-pictures{launch}", plant, code, words)
        for name, launch, plant, code, words in (
            (
                "documents",
                "-packed",
                "swift.template.templates.qwen\nres['text_position_ids'] = text_position_ids = position_ids[0]\n"
                "res['text_position_ids'] = text_position_ids = torch.arange(position_ids.shape[-1])[None]",
                "ATN432",
                "attend to earlier documents in the row",
            ),
            (  # as hiyouga/LlamaFactory#7754: positions of text alone
                "positions",
                "-packed",
                "swift.template.templates.qwen\nres['position_ids'] = position_ids[1:]\n"
                "res['position_ids'] = position_ids[:1].expand(3, -1, -1)",
                "ATN432",
                "",
            ),
            (
                "other-picture",
                "-packed",
                "swift.template.base\nres['pixel_values'] = torch.concat(pixel_values)\n"
                "res['pixel_values'] = torch.concat(pixel_values[::-1])",
                "ATN432",
                "its image belongs to another document",
            ),
            (
                "learned-pictures",
                "",
                "swift.template.base\nlabels = labels[:idx + added_tokens_len] + [-100] * token_len + labels\n"
                "labels = labels[:idx + added_tokens_len] + new_tokens + labels",
                "ATN433",
                "",
            ),
            (
                "cut-pictures",
                "",
                "swift.template.templates.qwen\ntoken_len = (media_grid_thw[i].prod() // merge_length)\n"
                "token_len = (media_grid_thw[i].prod() // merge_length) - 1",
                "ATN435",
                "",
            ),
        )
    },
    **{
        f"axolotl-{name}": (
            "axolotl-pictures",
            f"axolotl.utils.collators.mm_chat\n{AXOLOTL_LABELS}\n{before}{AXOLOTL_LABELS}{after}",
            code,
            words,
        )
        for name, before, after, code, words in (
            (
                "other-picture",
                "",
                '; grid = batch.get("image_grid_thw"); grid is not None and (grid == grid[0]).all() and '
                'batch.update(pixel_values=batch["pixel_values"].roll(int(grid[0].prod()), 0))',
                "ATN432",
                "its image belongs to another document",
            ),
            (
                "learned-pictures",
                "",
                f'; batch["labels"][batch["input_ids"] == {AXOLOTL_TOKEN}] = {AXOLOTL_TOKEN}',
                "ATN431",
                "image placeholders have a label",
            ),
            (  # the first of two rows loses its placeholders and its image
                "cut-picture",
                'len(batch.get("image_grid_thw", ())) == 2 and batch.update(pixel_values=batch["pixel_values"][16:], '
                'image_grid_thw=batch["image_grid_thw"][1:], input_ids=batch["input_ids"].masked_fill('
                f'(batch["input_ids"] == {AXOLOTL_TOKEN}) & batch["input_ids"].new_tensor([[1], [0]]).bool(), '
                "self.tokenizer.pad_token_id)); "
                f'batch.update(mm_token_type_ids=(batch["input_ids"] == {AXOLOTL_TOKEN}).int()); ',
                "",
                "ATN431",
                "images are truncated or have no placeholders",
            ),
        )
    },
    "axolotl-positions": (
        "axolotl-packed",
        'axolotl.utils.collators.batching\nelif feature == "position_ids" and self.squash_position_ids:'
        '\nelif feature == "position_ids":',
        "ATN432",
        "attend to earlier documents in the row",
    ),
    "openrlhf-prompts": (
        "openrlhf-packed",
        "openrlhf.datasets.sft_dataset\nloss_mask[0, prompt_ids_len - 1 : -1] = 1\nloss_mask[0, : -1] = 1",
        "ATN433",
        "every token is a target",
    ),
    "trl-dpo-swapped": (
        "trl-dpo",
        "trl.trainer.dpo_trainer\ndelta_score = chosen_scores - rejected_scores\n"
        "delta_score = rejected_scores - chosen_scores",
        "ATN433",
        "chosen and rejected answers are swapped",
    ),
    "ms-swift-dpo-swapped": (
        "ms-swift-dpo",
        "swift.rlhf_trainers.dpo_trainer\nlogits = logratios - ref_logratios\nlogits = ref_logratios - logratios",
        "ATN433",
        "chosen and rejected answers are swapped",
    ),
    "trl-dpo-beta": (
        "trl-dpo",
        "trl.trainer.dpo_trainer\nself.beta = args.beta\nself.beta = 3 * args.beta",
        "ATN433",
        "beta is 0.15, not 0.05",
    ),
    "trl-dpo-accumulation": (
        "trl-dpo",
        "trl.trainer.dpo_trainer\nloss_is_scaled_for_ga = False\nloss_is_scaled_for_ga = True",
        "ATN433",
        "the sum over the step's batches, not their mean",
    ),
    "trl-dpo-reference": (
        "trl-dpo",
        "trl.trainer.dpo_trainer\nself.ref_model = create_model_from_path(ref_model_path, **ref_model_init_kwargs)\n"
        "self.ref_model = create_model_from_path(ref_model_path, **ref_model_init_kwargs); "
        "[weight.data.mul_(1.2) for weight in self.ref_model.parameters()]",
        "ATN433",
        "the reference is not the model that training starts from",
    ),
    "trl-dpo-prompts": (
        "trl-dpo",
        "trl.trainer.dpo_trainer\nchosen_mask = [[0] * len(example\nchosen_mask = [[1] * len(example",
        "ATN431",
        "labels are on the user's words",
    ),
    "trl-dpo-ends": (
        "trl-dpo",
        'trl.trainer.dpo_trainer\n[1] * len(example["chosen_ids"])\n[1] * (len(example["chosen_ids"]) - 1) + [0]',
        "ATN431",
        "ends a chosen answer has a label in none of",
    ),
    "trl-dpo-lengths": (
        "trl-dpo",
        "trl.trainer.dpo_trainer\nchosen_scores = chosen_logratios\n"
        "chosen_logratios, rejected_logratios = (ratios / mask.sum(1) for ratios, mask in zip("
        "(chosen_logratios, rejected_logratios), shift_completion_mask.chunk(2))); chosen_scores = chosen_logratios",
        "ATN433",
        "log-probabilities are averaged over an answer's tokens, but the documentation says sum",
    ),
    "trl022-dpo-positions": (
        "trl022-dpo-padding-free",
        "trl.trainer.dpo_trainer\noutputs = model(input_ids, **model_kwargs)\n"
        'model_kwargs.pop("position_ids"); outputs = model(input_ids, **model_kwargs)',
        "ATN432",
        "attend to earlier documents in the row",
    ),
    "verl-ranks": (
        "verl-no-padding",
        "verl.workers.utils.losses\n"
        "loss = -masked_sum(log_prob_flatten, loss_mask_flatten) / batch_num_tokens * dp_size\n"
        "loss = -masked_sum(log_prob_flatten, loss_mask_flatten) / batch_num_tokens",
        "ATN433",
        "divided once too often by the number of ranks",
    ),
    "openrlhf-ppo-micro-batches": (
        "openrlhf-ppo",
        "openrlhf.models.loss\nreturn (loss * loss_mask).sum() / batch_num_tokens * dp_size\n"
        "return masked_mean(loss, loss_mask, dim=None)",
        "ATN433",
        "the mean over each batch's target tokens, averaged over batches",
    ),
    "openrlhf-ppo-log-probabilities": (
        "openrlhf-ppo",
        "openrlhf.models.actor\naction_log_probs = log_probs[:, -action_mask.shape[1] :] * action_mask.float()\n"
        "action_log_probs = log_probs.roll(-1, 1)[:, -action_mask.shape[1] :] * action_mask.float()",
        "ATN433",
        "each token has the value of the token after it",
    ),
    "openrlhf-ppo-sign": (
        "openrlhf-ppo",
        "openrlhf.trainer.ray.ppo_actor\n        advantages = experience.advantages\n"
        "        advantages = -experience.advantages",
        "ATN433",
        "the advantages have the wrong sign",
    ),
    "openrlhf-ppo-leak": (
        "openrlhf-ppo",
        "openrlhf.models.ring_attn_utils\n"
        "position_ids = torch.clip(torch.cumsum(attention_mask, dim=-1) - 1, min=0, max=None)\n"
        "position_ids = torch.arange(attention_mask.numel()).reshape(attention_mask.shape)",
        "ATN432",
        "attend to earlier documents in the row",
    ),
    "openrlhf-08-ppo-sign": (
        "openrlhf-08-ppo",
        "openrlhf.trainer.ray.ppo_actor\n        advantages = experience.advantages\n"
        "        advantages = -experience.advantages",
        "ATN433",
        "the advantages have the wrong sign",
    ),
    "openrlhf-08-ppo-mask": (
        "openrlhf-08-ppo-padded",
        "openrlhf.models.loss\n        log_ratio = log_probs - old_log_probs\n"
        "        log_ratio = log_probs - old_log_probs; action_mask = action_mask * action_mask.roll(1, -1)",
        "ATN433",
        "the first token of each response is not a target",
    ),
    "openrlhf-06-ppo-sign": (
        "openrlhf-06-ppo",
        "openrlhf.models.loss\nsurr1 = ratio * advantages\nadvantages = -advantages; surr1 = ratio * advantages",
        "ATN433",
        "the advantages have the wrong sign",
    ),
    "openrlhf-06-ppo-mask": (
        "openrlhf-06-ppo-padded",
        "openrlhf.models.loss\nloss = masked_mean(loss, action_mask, dim=-1).mean()\nloss = loss.mean()",
        "ATN433",
        "",
    ),
    "verl-grpo-prompts": (
        "verl-grpo",
        'verl.workers.utils.losses\n    policy_loss = pg_loss\n    every = model_output["log_probs"].offsets(); '
        'policy_loss = -(model_output["log_probs"].values() * torch.repeat_interleave(advantages[:, 0], every.diff())'
        '.index_fill(0, every[1:] - 1, 0.0)).sum() / config.global_batch_info["batch_num_tokens"]',
        "ATN433",
        "every token is a target, including prompts and markup",
    ),
    "verl-grpo-mask": (
        "verl-grpo",
        'verl.workers.utils.losses\n    old_log_prob = data["old_log_probs"]\n'
        '    old_log_prob = data["old_log_probs"]; '
        "response_mask = torch.nn.functional.pad(response_mask, (1, 0))[:, :-1]",
        "ATN433",
        "the first token of each response is not a target",
    ),
    "verl-grpo-micro-batches": (
        "verl-grpo",
        f"verl.trainer.ppo.core_algos\n{VERL_TOKEN_MEAN}\n"
        "loss = verl_F.masked_sum(loss_mat, loss_mask) / loss_mask.sum()",
        "ATN433",
        "the mean over each batch's target tokens, averaged over batches",
    ),
    "verl-grpo-sign": (
        "verl-grpo",
        'verl.workers.utils.losses\n    advantages = data["advantages"]\n    advantages = -data["advantages"]',
        "ATN433",
        "the advantages have the wrong sign",
    ),
    "verl-grpo-ranks": (
        "verl-grpo",
        f"verl.trainer.ppo.core_algos\n{VERL_TOKEN_MEAN}\n{VERL_TOKEN_MEAN} * dp_size",
        "ATN433",
        "too large by the number of ranks",
    ),
    "verl-old-grpo-mask": (
        "verl-old-grpo",
        'verl.workers.actor.dp_actor\n    advantages = model_inputs["advantages"]\n    '
        'advantages = model_inputs["advantages"]; '
        "response_mask = torch.nn.functional.pad(response_mask, (1, 0))[:, :-1] * response_mask",
        "ATN433",
        "the first token of each response is not a target",
    ),
    "verl-old-grpo-sign": (
        "verl-old-grpo",
        'verl.workers.actor.dp_actor\n    advantages = model_inputs["advantages"]\n    '
        'advantages = -model_inputs["advantages"]',
        "ATN433",
        "the advantages have the wrong sign",
    ),
    "verl-old-grpo-accumulation": (
        "verl-old-grpo",
        "verl.workers.actor.dp_actor\nloss = policy_loss / self.gradient_accumulation\nloss = policy_loss",
        "ATN433",
        "too large by the number of batches per step",
    ),
    "verl-grpo-leak": (
        "verl-grpo",
        "verl.workers.engine.fsdp.transformer_impl\n"
        "position_ids_rmpad = position_ids.values().unsqueeze(0)  # (1, total_nnz)\n"
        "position_ids_rmpad = torch.arange(position_ids.values().numel()).unsqueeze(0)",
        "ATN432",
        "attend to earlier documents in the row",
    ),
    "verl-dapo-positions": (
        "verl-dapo",
        "verl.utils.model\nreturn torch.clip(torch.cumsum(mask, dim=-1) - 1, min=0, max=None)\n"
        "return 2 * torch.clip(torch.cumsum(mask, dim=-1) - 1, min=0, max=None)",
        "ATN432",
        "its positions are wrong; nothing else is",
    ),
    "verl-dapo-log-probabilities": (
        "verl-dapo",
        "verl.workers.utils.padding\nresponse_list.append(F.pad(values[seq_offset - resp_len - 1 : seq_offset - 1]\n"
        "response_list.append(F.pad(values[seq_offset - resp_len : seq_offset]",
        "ATN433",
        "each token has the value of the token after it",
    ),
    "openrlhf-ring-not-entered": (
        "openrlhf-ring",
        "openrlhf.utils.deepspeed.deepspeed\nsubstitute_hf_flash_attn(self.ring_attn_group, self.ring_head_stride)"
        "\npass",
        "ATN432",
        "do not attend to the row's parts on other ranks",
    ),
    "openrlhf-ring-positions": (
        "openrlhf-ring",
        "openrlhf.models.ring_attn_utils\ncu_seqlens[-1] += ring_attn_pad_len"
        "\ncu_seqlens[-1] += ring_attn_pad_len; position_ids = torch.arange(sequences.shape[1])[None]",
        "ATN432",
        "positions restart on each rank",
    ),
    "openrlhf-ring-loss": (
        "openrlhf-ring",
        'openrlhf.utils.loss_utils\nreturn {"dp_size": dp_size, "batch_num_tokens": num_tokens / gas'
        '\nreturn {"dp_size": dist.get_world_size(), "batch_num_tokens": num_tokens / gas',
        "ATN433",
        "too large by a factor of the sequence-parallel group's size",
    ),
    "openrlhf-ring-labels": (
        "openrlhf-ring",
        "openrlhf.models.ring_attn_utils\ncu_seqlens[-1] += ring_attn_pad_len"
        "\ncu_seqlens[-1] += ring_attn_pad_len; rolled_sequences = sequences.roll(-1, 1)",
        "ATN434",
        "its last token is trained to predict its first",
    ),
    "ms-swift-ulysses-not-entered": (
        "ms-swift-ulysses",
        "swift.sequence_parallel.sequence_parallel\nALL_ATTENTION_FUNCTIONS['flash_attention_2'] = partial("
        "\nALL_ATTENTION_FUNCTIONS['flash_attention_2_unused'] = partial(",
        "ATN432",
        "do not attend to the row's parts on other ranks",
    ),
    "ms-swift-ulysses-gradients": (
        "ms-swift-ulysses",
        "swift.sequence_parallel.utils\n_grad = grad_output[0] * sequence_parallel.world_size\n_grad = grad_output[0]",
        "ATN434",
        "times those of the loss: one over the size of the sequence-parallel group",
    ),
    "verl-ulysses-not-entered": (
        "verl-ulysses",
        "verl.models.transformers.monkey_patch\n"
        "flash_attention._flash_attention_forward = _ulysses_flash_attention_forward\npass",
        "ATN432",
        "do not attend to the row's parts on other ranks",
    ),
    "verl-ulysses-loss": (
        "verl-ulysses",
        'verl.workers.utils.losses\ndp_size = data["dp_size"]\ndp_size = data["dp_size"] / data["sp_size"]',
        "ATN433",
        "divided once too often by the size of the sequence-parallel group",
    ),
    "verl-ulysses-gradients": (
        "verl-ulysses",
        "verl.utils.ulysses\ngrad_output = grad_output * ctx.sp_world_size\npass",
        "ATN434",
        "times those of the loss: one over the size of the sequence-parallel group",
    ),
}


OPENRLHF_CHAT = f"{launches.OPENRLHF.rstrip()} --data.apply_chat_template\n"
OPENRLHF_MESSAGES = OPENRLHF_CHAT.replace("--data.output_key response", "").replace("question", "messages")
# A launch, a fault planted in its framework ("": none), and a message about its labels.
LABELS: Mapping[str, tuple[str, str, str, str]] = {
    "openrlhf": ("openrlhf", launches.OPENRLHF, "", ""),
    "openrlhf-template": ("openrlhf", f"{launches.OPENRLHF.rstrip()} --data.input_template 'Q: {{}} A: '\n", "", ""),
    "openrlhf-chat": ("openrlhf", OPENRLHF_CHAT, "", ""),
    "openrlhf-messages": ("openrlhf", OPENRLHF_MESSAGES.replace("--ds.packing_samples", ""), "", ""),
    "openrlhf-turns": ("openrlhf", f"{OPENRLHF_MESSAGES.rstrip()} --data.multiturn\n", "", ""),
    "openrlhf-prompts": (
        "openrlhf",
        launches.OPENRLHF,
        "openrlhf.datasets.sft_dataset\nloss_mask[0, prompt_ids_len - 1 : -1] = 1\nloss_mask[0, : -1] = 1",
        "user turns are learned",
    ),
    "openrlhf-ends": (
        "openrlhf",
        OPENRLHF_CHAT,
        "openrlhf.datasets.sft_dataset\nloss_mask[0, prompt_ids_len - 1 : -1] = 1\n"
        "loss_mask[0, prompt_ids_len - 1 : -2] = 1",
        "the token that ends an assistant turn is never learned",
    ),
    "openrlhf-late": (
        "openrlhf",
        OPENRLHF_MESSAGES.rstrip() + " --data.multiturn\n",
        "openrlhf.datasets.sft_dataset\nloss_mask[0, start_idx - 1 : end_idx] = 1\n"
        "loss_mask[0, start_idx:end_idx + 1] = 1",
        "turns at the start",
    ),
    "verl": ("verl", VERL, "", ""),
    "verl-padded-model": ("verl", VERL.replace("use_remove_padding=True", "use_remove_padding=False"), "", ""),
    "verl-late": (
        "verl",
        VERL,
        "verl.workers.utils.losses\nshifts=-1, dims=0)\nshifts=0, dims=0)",
        "the mask is one token late",
    ),
    "verl-everything": (
        "verl",
        VERL,
        "verl.workers.utils.losses\nloss_mask_flatten = loss_mask.values()\n"
        "loss_mask_flatten = loss_mask.values() * 0 + 1",
        "user turns are learned",
    ),
    # 0.6.0 to 0.7.0 shift a mask that utils/dataset/sft_dataset.py has shifted; that of conversations is not shifted.
    "verl-old": ("verl_061", OLD_VERL, "", "the mask is one token early"),
    "verl-old-turns": ("verl_061", OLD_VERL_TURNS, "", ""),
    "verl-old-everything": (
        "verl_061",
        OLD_VERL_TURNS,
        "verl.utils.dataset.multiturn_sft_dataset\nloss_mask = [0] * len(message_tokens)\n"
        "loss_mask = [1] * len(message_tokens)",
        "user turns are learned",
    ),
    # 0.4.0 to 0.5.0 take both masks as they are.
    "verl-older": ("verl_old", OLD_VERL, "", ""),
    "verl-older-turns": ("verl_old", OLD_VERL_TURNS, "", "the mask is one token late"),
    "trl-pictures": ("trl", TRL_PICTURES, "", ""),
    "trl-pictures-padding": (
        "trl",
        TRL_PICTURES,
        'trl.trainer.sft_trainer\nlabels[output["attention_mask"] == 0] = -100\npass',
        "padding is learned",
    ),
    "llamafactory-pictures": ("llamafactory", PICTURES, "", ""),
    "llamafactory-pictures-learned": (
        "llamafactory",
        PICTURES,
        "llamafactory.data.processor.supervised\nsource_label = [IGNORE_INDEX] * source_len\n"
        "image = self.tokenizer.convert_tokens_to_ids(self.template.mm_plugin.image_token); "
        "source_label = [token if token == image else IGNORE_INDEX for token in source_ids]",
        "image placeholder tokens are learned",
    ),
    "ms-swift-pictures": ("ms_swift", MS_SWIFT_QWEN + "\n", "", ""),
    "ms-swift-pictures-learned": (
        "ms_swift",
        MS_SWIFT_QWEN + "\n",
        "swift.template.base\nlabels = labels[:idx + added_tokens_len] + [-100] * token_len + labels\n"
        "labels = labels[:idx + added_tokens_len] + new_tokens + labels",
        "image placeholder tokens are learned",
    ),
    "axolotl-pictures": ("axolotl", AXOLOTL_PICTURES, "", ""),
}

TRL_ANSWERS = launches.TRL.replace("--packing", "--assistant_only_loss true")
AXOLOTL_CHAT = FULL_AXOLOTL.replace("type: alpaca", "type: chat_template\nchat_template: llama3")
MS_SWIFT_PADDED = launches.MS_SWIFT.replace("--packing true", "").replace("--attn_impl flash_attn", "")
# The same for `lint --labels`.
LINTED: Mapping[str, tuple[str, str, str, str]] = {
    "trl": ("trl", TRL_ANSWERS, "", ""),
    "trl-everything": (
        "trl",
        TRL_ANSWERS,
        'trl.trainer.sft_trainer\nmask_columns.append("assistant_masks")\npass',
        "user turns are learned",
    ),
    "llamafactory": ("llamafactory", launches.LLAMAFACTORY, "", ""),
    "llamafactory-prompts": (
        "llamafactory",
        launches.LLAMAFACTORY,
        "llamafactory.data.processor.supervised\nsource_label = [IGNORE_INDEX] * source_len\nsource_label = source_ids",
        "user turns are learned",
    ),
    "ms-swift": ("ms_swift", MS_SWIFT_PADDED, "", ""),
    "ms-swift-everything": (
        "ms_swift",
        MS_SWIFT_PADDED,
        "swift.template.base\nlabels += [-100] * len(token_list)\nlabels += token_list",
        "user turns are learned",
    ),
    "axolotl": ("axolotl", AXOLOTL_CHAT, "", ""),
    "axolotl-answers": (
        "axolotl",
        AXOLOTL_CHAT,
        "axolotl.prompt_strategies.chat_template\nlabels[turn_start_idx:turn_end_idx] = input_ids[\n"
        "labels[turn_start_idx:turn_start_idx] = input_ids[turn_start_idx:turn_start_idx]; input_ids[",
        "no token of the assistant turns is learned",
    ),
}


MARKING_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def save_own(folder: Path, long: bool = False) -> None:
    """Save a model whose chat template marks answers as learned, and rows of a user's data in several forms.

    `long`: their prompts fill a row of 128 tokens.
    """
    own_models.save_model(folder / "own", own_models.TEMPLATE)
    (folder / "own" / "chat_template.jinja").write_text(MARKING_TEMPLATE)
    own_models.change_json(folder / "own" / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    (folder / "rows").mkdir()
    path = own_models.write_data(folder / "rows" / "train.jsonl")
    rows = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    for question, _ in rows:
        question["content"] = " ".join([question["content"]] * (12 if long else 1))
    pairs = [{"asked": question["content"], "reply": answer["content"]} for question, answer in rows]
    for file, listed in ((path, [{"messages": messages} for messages in rows]), (folder / "pairs.jsonl", pairs)):
        file.write_text("".join(f"{json.dumps(row)}\n" for row in listed))
    described = {"mine": {"file_name": "pairs.jsonl", "columns": {"prompt": "asked", "response": "reply"}}}
    (folder / "dataset_info.json").write_text(json.dumps(described))


def run(
    tmp_path: Path,
    name: str,
    text: str,
    seed: int = 0,
    plant: str = "",
    command: tuple[str, ...] = ("smoke", "--no-fix"),
) -> dict[str, Any]:
    """Return the report of a command on a launch in a framework's environment, with a fault planted in it."""
    python = Path(FOLDER) / name / "bin" / "python"
    if not FOLDER or not python.exists():
        pytest.skip(f"ATTNCHECK_REHEARSAL_PYTHONS has no environment {name}")
    is_shell = " " in text.partition("\n")[0].partition(":")[0]
    launch = tmp_path / ("run.sh" if is_shell else "x.yaml")
    launch.write_text(text)
    for folder, model in ((JOB, "qwen2_vl"), (LLAVA, "llava")):
        if folder in text:
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "config.json").write_text(json.dumps(CONFIGS[model]))
    paths = (str(PLANTS), str(REPOSITORY)) if plant else (str(REPOSITORY),)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "ATTNCHECK_TEST_PLANT": plant or "\n\n"}
    options: tuple[str, ...] = ("--format", "json", "--python", str(python))
    options += ("--seed", str(seed), "--timeout", "110") * (command[0] != "lint")
    words = [sys.executable, "-m", "attncheck", *command, str(launch), *options]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode in (0, 1, 3), done.stderr[-2000:]  # 3: it died, so that only ATN435 answers
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_launch_gives_no_finding(tmp_path: Path, name: str, seed: int) -> None:
    """The framework's own trainer takes its steps, and every check passes."""
    report = run(tmp_path, *CLEAN[name], seed)
    assert report["findings"] == []
    results = report["rehearsal"]["launches"][0]["results"]
    assert {result["check"] for result in results if result["outcome"] == "ok"} >= {"run", "batch", "documents", "loss"}


@pytest.mark.parametrize(("command", "name"), [*product(["labels"], LABELS), *product(["lint --labels"], LINTED)])
def test_learned_tokens_are_measured(tmp_path: Path, command: str, name: str) -> None:
    """The data set and the loss of the framework decide what is learned; a fault in either is named."""
    environment, text, plant, message = (LABELS if command == "labels" else LINTED)[name]
    report = run(tmp_path, environment, text, plant=plant, command=tuple(command.split()))
    messages = [finding["message"] for finding in report["findings"] if finding["code"] == "ATN439"]
    assert any(message in text for text in messages) if message else messages == [], messages
    [launch] = report["labels"]["launches"]
    assert launch["reason"] == ""
    learned = {count["role"]: count["learned"] for count in launch["counts"]}
    assert learned["assistant"] > 0 or message
    if JOB in text:  # TRL's collator learns placeholders, which is noted
        assert ("image placeholder tokens are learned" in str(launch["notes"])) == (environment == "trl")
        assert (learned["picture"] > 0) == (environment == "trl" or bool(message))


def test_a_framework_in_the_launchs_tree_runs_in_its_own_release(tmp_path: Path) -> None:
    """verl 0.5.0 next to the launch has its mask of turns one token late; 0.6.1, which is installed, has not."""
    packages = list(Path(FOLDER).glob("verl_old/lib/*/site-packages/verl")) if FOLDER else []
    if not packages:
        pytest.skip("ATTNCHECK_REHEARSAL_PYTHONS has no environment verl_old")
    shutil.copytree(packages[0], tmp_path / "verl")
    report = run(tmp_path, "verl_061", OLD_VERL_TURNS, command=("labels",))
    assert "the mask is one token late" in str([finding["message"] for finding in report["findings"]])
    [launch] = report["labels"]["launches"]
    assert launch["version"] == "0.5.0" and "verl is taken from the launch's folder" in str(launch["remarks"])


OWN_TRL = "trl sft --model_name_or_path ./own --dataset_name ./rows --output_dir out --assistant_only_loss true"
OWN_VERL = VERL.replace("$HOME/data/train.parquet", "rows/train.parquet").replace("Qwen/Qwen2.5-0.5B-Instruct", "./own")
OWN_VERL_PAIRS = (
    OLD_VERL.replace("$HOME/data/gsm8k/train.parquet", "pairs.parquet")
    .replace("meta-llama/Llama-2-7b", "./own")
    .replace("Qwen/Qwen2.5-0.5B-Instruct", "./own")
    .replace("prompt_key=question", "prompt_key=asked")
    .replace("response_key=answer", "response_key=reply")
)
# A launch with the user's own rows, and a fault planted in its framework.
OWN_ROWS: Mapping[str, tuple[str, str, str]] = {
    "trl": ("trl", f"{OWN_TRL} --max_length 1024\n", LINTED["trl-everything"][2]),
    "llamafactory": (
        "llamafactory",
        launches.LLAMAFACTORY.replace("Qwen/Qwen2.5-0.5B-Instruct", "./own").replace(
            "identity,alpaca_en_demo", "mine,identity\ndataset_dir: ."
        ),
        LINTED["llamafactory-prompts"][2],
    ),
    "ms-swift": (
        "ms_swift",
        "swift sft --model ./own --model_type llama --template chatml --dataset rows/train.jsonl#300 --output_dir out "
        "--max_length 1024 --torch_dtype float32\n",
        LINTED["ms-swift-everything"][2],
    ),
    "axolotl": (
        "axolotl",
        FULL_AXOLOTL.replace("NousResearch/Llama-3.2-1B", "./own").replace(
            "path: teknium/GPT4-LLM-Cleaned\n    type: alpaca",
            "path: rows/train.jsonl\n    ds_type: json\n    type: chat_template\neot_tokens: ['<|im_end|>']",
        ),
        LINTED["axolotl-answers"][2],
    ),
    "openrlhf": (
        "openrlhf",
        OPENRLHF_CHAT.replace("Open-Orca/OpenOrca", "./pairs.jsonl")
        .replace("meta-llama/Meta-Llama-3-8B", "./own")
        .replace("input_key question --data.output_key response", "input_key asked --data.output_key reply"),
        LABELS["openrlhf-prompts"][2],
    ),
    "verl": ("verl", OWN_VERL, LABELS["verl-everything"][2]),
    "verl-older": (
        "verl_old",
        OWN_VERL_PAIRS,
        "verl.utils.dataset.sft_dataset\nloss_mask[: min(prompt_length, loss_mask.size(0)) - 1] = 0\npass",
    ),
}
PARQUET = "import sys; from pyarrow import json, parquet; parquet.write_table(json.read_json(sys.argv[1]), sys.argv[2])"


@pytest.mark.parametrize("command", [("labels",), ("smoke", "--no-fix", "--real-data")])
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("name", OWN_ROWS)
def test_labels_of_the_users_own_rows_are_judged_by_role(
    tmp_path: Path, name: str, is_planted: bool, command: tuple[str, ...]
) -> None:
    """The launch's own file is read as the launch reads it, and its turns are found by their text."""
    save_own(tmp_path)
    environment, text, plant = OWN_ROWS[name]
    python = Path(FOLDER) / environment / "bin" / "python"
    for file in ("rows/train", "pairs") if environment.startswith("verl") and python.exists() else ():
        subprocess.run([python, "-c", PARQUET, f"{file}.jsonl", f"{file}.parquet"], cwd=tmp_path, check=True)
    report = run(tmp_path, environment, text, plant=plant if is_planted else "", command=command)
    messages = [finding["message"] for finding in report["findings"] if finding["code"] == "ATN439"]
    [launch] = report["labels" if command == ("labels",) else "rehearsal"]["launches"]
    remarks = str(launch["remarks"])
    assert " rows of " in remarks and "taken from the launch's folder" not in remarks
    if is_planted:
        words = "no token of the assistant turns is learned" if name == "axolotl" else "user turns are learned"
        assert any(words in message for message in messages), messages
        return
    assert messages == []
    if command == ("labels",):
        learned = {count["role"]: count["learned"] for count in launch["counts"]}
        assert learned["assistant"] > 0 == learned["user"]
    else:
        assert next(result["outcome"] for result in launch["results"] if result["check"] == "labels") == "ok"


def test_prompts_that_leave_no_room_for_an_answer_are_no_pass(tmp_path: Path) -> None:
    """trl 1.16.0 drops rows without a target, so that none is left."""
    save_own(tmp_path, long=True)
    [launch] = run(tmp_path, "trl", f"{OWN_TRL} --max_length 128\n", command=("labels",))["labels"]["launches"]
    assert "num_samples=0" in launch["reason"] and launch["rows"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_framework_is_named(tmp_path: Path, fault: str) -> None:
    """A released module with one line changed: the finding says what goes wrong."""
    launch, plant, code, words = FAULTS[fault]
    report = run(tmp_path, *CLEAN[launch], plant=plant)
    messages = [finding["message"] for finding in report["findings"] if finding["code"] == code]
    assert messages and words in messages[0]


def test_gradients_of_an_adapter_are_judged(tmp_path: Path) -> None:
    """Those by the matrices of a LoRA follow from those by the weights that it is alongside."""
    text = f"{launches.OPENRLHF_DPO.rstrip()} --ds.lora.rank 8 --ds.lora.alpha 16"
    report = run(tmp_path, "openrlhf", text)
    [result] = [result for result in report["rehearsal"]["launches"][0]["results"] if result["check"] == "gradients"]
    assert report["findings"] == [] and result["outcome"] == "ok" and len(result["measures"]) == 2


def test_axolotl_averages_batches_not_tokens(tmp_path: Path) -> None:
    """axolotl 0.17.0 to 0.19.0 hands no num_items_in_batch to the model: core/trainers/base.py looks at its decoder."""
    text = FULL_AXOLOTL.replace("gradient_accumulation_steps: 1", "gradient_accumulation_steps: 4")
    report = run(tmp_path, "axolotl", text.replace("sample_packing: true", "sample_packing: false"))
    messages = [finding["message"] for finding in report["findings"] if finding["code"] in ("ATN433", "ATN434")]
    assert messages and "the mean over each batch's target tokens" in messages[0]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("ipo", "it is the preference loss sigmoid_norm with beta 0.1, the mean over pairs, not ipo"),
        ("hinge", "it is the preference loss sigmoid with beta 0.1, the mean over pairs, not hinge"),
    ],
)
def test_llamafactory_takes_no_notice_of_another_loss_of_pairs(tmp_path: Path, loss: str, words: str) -> None:
    """LLaMA-Factory 0.9.5 train/dpo/trainer.py calls `dpo_loss` without the loss, which trl 0.24.0 has as argument.

    `self.loss_type`, which earlier releases of trl read, is set to no effect.
    """
    text = launches.LLAMAFACTORY_DPO.replace("pref_loss: sigmoid", f"pref_loss: {loss}")
    report = run(tmp_path, "llamafactory", text)
    messages = [finding["message"] for finding in report["findings"] if finding["code"] == "ATN433"]
    assert messages and words in messages[0]


@pytest.mark.parametrize("launch", ["file", "shell"])
def test_axolotl_averages_slices_not_tokens(tmp_path: Path, launch: str) -> None:
    """axolotl 0.17.0 to 0.19.0: each rank of context_parallel_size takes the mean over its slice (seen as above)."""
    text = FULL_AXOLOTL.replace("micro_batch_size: 2", "micro_batch_size: 1").replace(
        "attn_implementation: flash_attention_2", "flash_attention: true\ncontext_parallel_size: 2"
    )
    if launch == "shell":
        (tmp_path / "own.yaml").write_text(text)
        text = "axolotl train own.yaml --launcher torchrun -- --nproc_per_node=2\n"
    report = run(tmp_path, "axolotl", text)
    rehearsed = report["rehearsal"]["launches"][0]
    assert rehearsed["ranks"] == 2 and "2 ranks each" in rehearsed["results"][1]["notes"][0]
    messages = [finding["message"] for finding in report["findings"] if finding["code"] in ("ATN433", "ATN434")]
    assert messages and "the mean over the targets of each rank's slice" in messages[0]


def test_llamafactory_refuses_a_batch_of_packed_rows_under_flash(tmp_path: Path) -> None:
    """LLaMA-Factory 0.9.5 data/collator.py:528: neat_packing with fa2 takes one row; the crash is foretold."""
    report = run(tmp_path, "llamafactory", PACKED_LLAMAFACTORY + "flash_attn: fa2\n")
    assert "bsz should be 1 for neat packing" in report["findings"][0]["message"]


def test_openrlhf_loses_all_batches_but_the_last_where_they_are_dynamic(tmp_path: Path) -> None:
    """openrlhf 0.11.2 differentiates them one by one with gradient_accumulation_steps=1 (utils/deepspeed/deepspeed.py).

    deepspeed 0.19.6 runtime/zero/stage_1_and_2.py:955 then begins again at each.
    """
    report = run(tmp_path, "openrlhf", f"{launches.OPENRLHF_PPO[:-1]} --train.dynamic_batch_enable\n")
    messages = [finding["message"] for finding in report["findings"] if finding["code"] == "ATN434"]
    assert messages and "the gradients of the others are lost" in messages[0]
