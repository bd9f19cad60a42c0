"""Models whose attention does not fit what is installed: a config.json each, read by the real probe."""

from __future__ import annotations

from functools import partial

from attncheck.selftest.faults import Sandbox, SandboxAction
from tests.selftest.planted import job, nvidia
from tests.selftest.planted.job import MODEL, all_of, with_packages, write_model
from tests.selftest.planted.nvidia import V100, Card

NO_FLASH = ("flash-attn", "ring-flash-attn")
RTX_3090 = Card("NVIDIA GeForce RTX 3090", "8.6", 24576, 24200, "N/A")


make_fault = partial(job.make_fault, family=MODEL)


def with_config(model_type: str = "llama", **fields: object) -> SandboxAction:
    """Return what writes the configuration of a model of this type."""
    return lambda sandbox: write_model(sandbox, None, model_type=model_type, **fields)


def with_tokenizer(**fields: object) -> SandboxAction:
    """Return what changes the tokenizer's settings."""
    return lambda sandbox: write_model(sandbox, fields)


def with_model_file(name: str, text: str) -> SandboxAction:
    """Return what writes a file of the model."""
    return lambda sandbox: sandbox.write_file(f"model/{name}", text)


def with_remote_code(source: str, **fields: object) -> SandboxAction:
    """Return what gives the model its own code."""

    def inject(sandbox: Sandbox) -> None:
        auto_map = {"AutoModelForCausalLM": "modeling_own.Own"}
        write_model(sandbox, None, model_type="own_model", auto_map=auto_map, **fields)
        sandbox.write_file("model/modeling_own.py", source)

    return inject


def with_gpus(*cards: Card) -> SandboxAction:
    """Return what puts other GPUs into the machine."""
    return lambda sandbox: nvidia.install_nvidia_smi(sandbox.folder / "tools", cards, "PHB")


def delete_config(sandbox: Sandbox) -> None:
    """Delete config.json."""
    (sandbox.folder / "model" / "config.json").unlink()


_GEMMA2 = {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "head_dim": 256}
_MLA = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 1536}
_SINKS = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 64}
_NEXT = {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "head_dim": 256}
FAULTS = (
    make_fault("model-gone", "ATN301", "a model folder without config.json", "a path mistyped", delete_config),
    make_fault("remote-code-flash", "ATN304", "a model whose code imports flash_attn, which is not installed",
          "Phi-3 and others on the Hub",
          all_of(with_packages(without=NO_FLASH), with_remote_code("import flash_attn\n"))),
    make_fault("remote-code-unpad", "ATN305", "a model whose code unpacks three values of unpad_input",
          "models written for flash-attn before 2.7",
          with_remote_code("from flash_attn.bert_padding import unpad_input\n"),
          relies_on=("flash-attn",)),
    make_fault("remote-code-removed", "ATN306",
          "a model whose code imports is_torch_fx_available, gone from transformers 5",
          "DeepSeek's own modelling files", all_of(with_packages("transformers==5.17.0"),
                with_remote_code("from transformers.utils.import_utils import is_torch_fx_available\n")),
          "is_torch_fx_available"),
    make_fault("softcap-dropped", "ATN310", "a soft-capped model under a transformers whose sdpa leaves the cap out",
          "gemma2's loss under sdpa",
          all_of(with_packages("transformers==4.45.0"), with_config("gemma2", **_GEMMA2))),
    make_fault("softcap-old-flash", "ATN311", "a soft-capped model with flash-attn 2.5.9",
          "flash-attn has it since 2.6.0",
          all_of(with_packages("flash-attn==2.5.9"), with_config("gemma2", **_GEMMA2))),
    make_fault("sinks-dropped", "ATN312", "a gpt-oss under transformers 4.57.6 on flash-attn 2",
          "its sinks are left out silently", with_config("gpt_oss", **_SINKS),
          relies_on=("flash-attn", "transformers")),
    make_fault("sinks-redirected", "ATN313", "a gpt-oss under transformers 5.17.0 without the Hub's kernel",
          "transformers redirects it",
          all_of(with_packages("transformers==5.17.0"), with_config("gpt_oss", **_SINKS)),
          relies_on=("flash-attn-4",)),
    make_fault("head-size-512", "ATN314", "heads of 512", "gemma4's global layers", with_config(head_dim=512)),
    make_fault("head-size-256-consumer", "ATN315", "heads of 256 on an RTX 3090 with flash-attn 2.5.4",
          "its backward has too little shared memory",
          all_of(with_packages("flash-attn==2.5.4"), with_gpus(RTX_3090), with_config(head_dim=256))),
    make_fault("chunked", "ATN316", "llama4's chunked attention", "flash attention has no chunks",
          with_config("llama4_text", attention_chunk_size=8192,
                layer_types=["chunked_attention"] * 3 + ["full_attention"], max_position_embeddings=32768)),
    make_fault("alibi", "ATN317", "a falcon with alibi", "its flash attention raises at the first forward",
          with_config("falcon", alibi=True)),
    make_fault("gemma-half", "ATN319", "a gemma2 on V100s", "its activations overflow float16",
          all_of(with_gpus(V100, V100), with_config("gemma2", **_GEMMA2))),
    make_fault("asks-attentions", "ATN321", "output_attentions in config.json", "left by an analysis",
          with_config(output_attentions=True)),
    make_fault("liger-unknown", "ATN322", "liger-kernel alongside a model that it has no kernels for", "a new model",
          all_of(with_packages("liger-kernel==0.8.4"), with_config("olmo9"))),
    make_fault("flash-4-head-size", "ATN323", "heads of 512 with flash-attn-4", "it takes up to 256",
          all_of(with_packages("flash-attn-4==4.0.0b36"), with_config(head_dim=512)),
          relies_on=("tools/nvidia-smi",)),
    make_fault("dropout-dropped", "ATN324", "attention_dropout with flash-attn-3 alone", "it has no dropout",
          all_of(with_packages("flash-attn-3==3.0.0b1", without=NO_FLASH), with_config(attention_dropout=0.1))),
    make_fault("float32-checkpoint", "ATN325", "a float32 checkpoint",
          "loaded without a dtype, flash attention refuses", with_config(torch_dtype="float32"),
          relies_on=("tools/nvidia-smi",)),
    make_fault("heads-indivisible", "ATN326", "32 heads over 6 kv heads", "an edited configuration",
          with_config(num_key_value_heads=6)),
    make_fault("config-damaged", "ATN327", "num_hidden_layers written as a word", "an edited configuration",
          with_config(num_hidden_layers="thirty"), "num_hidden_layers"),
    make_fault("mask-and-packing", "ATN402", "packing by hand, without a framework",
          "transformers finds documents without a mask alone", with_packages(without=("trl",)),
          relies_on=("axolotl", "llamafactory", "model/config.json", "ms-swift", "openrlhf", "verl")),
    make_fault("cache-and-packing", "ATN403", "packing by hand on sdpa, the cache on",
          "the cache switches the separation off",
          all_of(with_packages("transformers==5.17.0", without=("trl", *NO_FLASH)), with_config(use_cache=True)),
          relies_on=("accelerate", "axolotl", "flash-attn-3", "flash-attn-4", "llamafactory", "ms-swift", "openrlhf",
                     "verl")),
    make_fault("right-padding", "ATN404", "a Mistral under transformers 4.46.0, whose tokenizer pads right",
          "ValueError at the first batch",
          all_of(with_packages("transformers==4.46.0"), with_config("mistral"))),
    make_fault("pad-missing", "ATN405", "a tokenizer without pad_token", "Llama's base models",
          with_tokenizer(pad_token=None)),
    make_fault("pad-is-eos", "ATN406", "a tokenizer that pads with its end token", "end tokens vanish from the labels",
          with_tokenizer(pad_token="</s>")),
    make_fault("left-padding", "ATN407", "a tokenizer that pads left", "a setting for generation",
          with_tokenizer(padding_side="left"),
          relies_on=("openrlhf", "verl")),
    make_fault("mrope", "ATN408", "a Qwen2-VL under transformers 4.50.0", "three-row positions crash flash attention",
          all_of(with_packages("transformers==4.50.0"),
                with_config("qwen2_vl", rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}))),
    make_fault("recurrent-packed", "ATN409", "a Qwen3-Next without its kernels",
          "state runs from one document into the next",
          all_of(with_packages("transformers==5.17.0"), with_config("qwen3_next", **_NEXT))),
    make_fault("neat-packing-model", "ATN411", "LLaMA-Factory's neat packing for gpt-oss", "its collator raises",
          all_of(with_packages("llamafactory==0.9.5"), with_config("gpt_oss", **_SINKS))),
    make_fault("tokenizer-damaged", "ATN412", "a tokenizer_config.json cut off", "a download that broke",
          with_model_file("tokenizer_config.json", '{"pad_token": ')),
    make_fault("ring-window", "ATN501", "a Mistral with a window on a ring",
          "ring-flash-attn applies it to each block on its own", with_config("mistral", sliding_window=4096),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-sinks", "ATN502", "a gpt-oss on a ring", "the adapter drops its sinks",
          with_config("gpt_oss", **_SINKS),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-softcap", "ATN503", "a gemma2 on a ring", "ring-flash-attn asserts that it is not set",
          with_config("gemma2", **_GEMMA2),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-alibi", "ATN504", "a bloom on a ring", "ring-flash-attn asserts that it is not set",
          with_config("falcon", alibi=True),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-dropout", "ATN505", "attention_dropout on a ring", "each rank draws its own",
          with_config(attention_dropout=0.1),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-bidirectional", "ATN506", "a BERT on a ring", "the adapter is causal only", with_config("bert",
          architectures=["BertForMaskedLM"]),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-mla", "ATN507", "a DeepSeek-V3 on a ring under transformers 5.17.0",
          "values are smaller than keys",
          all_of(with_packages("transformers==5.17.0"), with_config("deepseek_v3", **_MLA)),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-stride", "ATN508", "8 kv heads under 32 heads", "heads_k_stride must divide the 8",
          with_config(num_key_value_heads=8), "8",
          relies_on=("ring-flash-attn",)),
    make_fault("ulysses-sizes", "ATN509", "28 heads over 4 kv heads beside DeepSpeed", "eight ranks do not divide them",
          all_of(with_packages("deepspeed==0.18.0"),
                with_config(num_attention_heads=28, num_key_value_heads=4, head_dim=128))),
    make_fault("accelerate-windows", "ATN510", "a Mistral with accelerate 1.10",
          "its context parallelism drops the window",
          all_of(with_packages("accelerate==1.10.0"), with_config("mistral", sliding_window=4096))),
    make_fault("ring-recurrent", "ATN511", "a Qwen3-Next on a ring", "its recurrent layers are cut into pieces",
          with_config("qwen3_next", **_NEXT),
          relies_on=("ring-flash-attn",)),
    make_fault("ulysses-mla", "ATN512", "a DeepSeek-V3 with DeepSpeed's Ulysses",
          "it asserts one shape of keys and values",
          all_of(with_packages("deepspeed==0.18.0", "transformers==5.17.0"), with_config("deepseek_v3", **_MLA))),
    make_fault("ring-dtype", "ATN513", "a float16 model on a ring",
          "gradients of keys come back in bfloat16's precision", with_config(torch_dtype="float16"),
          relies_on=("ring-flash-attn", "tools/nvidia-smi")),
    make_fault("hub-kernel-backward", "ATN159", "8 kv heads, and the Hub's kernel of version 3",
          "its backward fails for grouped-query attention",
          all_of(with_packages("kernels==0.16.0", "transformers==5.17.0", without=NO_FLASH),
                with_config(num_key_value_heads=8))),
)  # fmt: skip
