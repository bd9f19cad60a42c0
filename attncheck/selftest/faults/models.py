"""Models whose attention does not go with what is installed: a config.json each, read by the real probe."""

from __future__ import annotations

from attncheck.selftest.faults import Fault, Ground, Plant, nvidia
from attncheck.selftest.faults.job import MODEL, both, having, model
from attncheck.selftest.faults.nvidia import V100, Card

NO_RING = ("ring-flash-attn",)
NO_FLASH = ("flash-attn", "ring-flash-attn")
RTX_3090 = Card("NVIDIA GeForce RTX 3090", "8.6", 24576, 24200, "N/A")


def fault(name: str, code: str, title: str, imitates: str, plant: Plant, *says: str) -> Fault:
    """Return a fault of a model beside an environment."""
    return Fault(name, MODEL, (code,), title, imitates, plant, says)


def of(kind: str = "llama", **fields: object) -> Plant:
    """Return what writes the configuration of a model of this type."""
    return lambda ground: model(ground, None, model_type=kind, **fields)


def tokenizer(**fields: object) -> Plant:
    """Return what changes the tokenizer's settings."""
    return lambda ground: model(ground, fields)


def raw(name: str, text: str) -> Plant:
    """Return what writes a file of the model."""
    return lambda ground: ground.write(f"model/{name}", text)


def remote(source: str, **fields: object) -> Plant:
    """Return what gives the model code of its own."""

    def plant(ground: Ground) -> None:
        model(ground, None, model_type="own_model", auto_map={"AutoModelForCausalLM": "modeling_own.Own"}, **fields)
        ground.write("model/modeling_own.py", source)

    return plant


def cards(*cards: Card) -> Plant:
    """Return what puts other GPUs into the machine."""
    return lambda ground: nvidia.machine(ground.folder / "tools", cards, "PHB")


def no_model(ground: Ground) -> None:
    """Delete config.json."""
    (ground.folder / "model" / "config.json").unlink()


_GEMMA2 = {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "head_dim": 256}
_MLA = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 1536}
_SINKS = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 64}
_NEXT = {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "head_dim": 256}
FAULTS = (
    fault("model-gone", "ATN301", "a model folder without config.json", "a path mistyped", no_model),
    fault("remote-code-flash", "ATN304", "a model whose code imports flash_attn, which is not installed",
          "Phi-3 and others on the Hub", both(having(without=NO_FLASH), remote("import flash_attn\n"))),
    fault("remote-code-unpad", "ATN305", "a model whose code unpacks three values of unpad_input",
          "models written for flash-attn before 2.7",
          remote("from flash_attn.bert_padding import unpad_input\n")),
    fault("remote-code-removed", "ATN306", "a model whose code imports is_torch_fx_available, gone from transformers 5",
          "DeepSeek's own modelling files", both(having("transformers==5.17.0"),
                remote("from transformers.utils.import_utils import is_torch_fx_available\n")),
                "is_torch_fx_available"),
    fault("softcap-dropped", "ATN310", "a soft-capped model under a transformers whose sdpa leaves the cap out",
          "gemma2's loss under sdpa",
          both(having("transformers==4.45.0"), of("gemma2", **_GEMMA2))),
    fault("softcap-old-flash", "ATN311", "a soft-capped model with flash-attn 2.5.9", "flash-attn has it since 2.6.0",
          both(having("flash-attn==2.5.9"), of("gemma2", **_GEMMA2))),
    fault("sinks-dropped", "ATN312", "a gpt-oss under transformers 4.57.6 on flash-attn 2",
          "its sinks are left out in silence", of("gpt_oss", **_SINKS)),
    fault("sinks-redirected", "ATN313", "a gpt-oss under transformers 5.17.0 without the Hub's kernel",
          "transformers redirects it",
          both(having("transformers==5.17.0"), of("gpt_oss", **_SINKS))),
    fault("head-size-512", "ATN314", "heads of 512", "gemma4's global layers", of(head_dim=512)),
    fault("head-size-256-consumer", "ATN315", "heads of 256 on an RTX 3090 with flash-attn 2.5.4",
          "its backward has too little shared memory",
          both(having("flash-attn==2.5.4"), cards(RTX_3090), of(head_dim=256))),
    fault("chunked", "ATN316", "llama4's chunked attention", "flash attention has no chunks",
          of("llama4_text", attention_chunk_size=8192, layer_types=["chunked_attention"] * 3 + ["full_attention"],
                max_position_embeddings=32768)),
    fault("alibi", "ATN317", "a falcon with alibi", "its flash attention raises at the first forward", of("falcon",
          alibi=True)),
    fault("gemma-half", "ATN319", "a gemma2 on V100s", "its activations overflow float16", both(cards(V100, V100),
          of("gemma2", **_GEMMA2))),
    fault("asks-attentions", "ATN321", "output_attentions in config.json", "left by an analysis",
          of(output_attentions=True)),
    fault("liger-unknown", "ATN322", "liger-kernel beside a model that it has no kernels for", "a new model",
          both(having("liger-kernel==0.8.4"), of("olmo9"))),
    fault("flash-4-head-size", "ATN323", "heads of 512 with flash-attn-4", "it takes up to 256",
          both(having("flash-attn-4==4.0.0b36"), of(head_dim=512))),
    fault("dropout-dropped", "ATN324", "attention_dropout with flash-attn-3 alone", "it has no dropout",
          both(having("flash-attn-3==3.0.0b1", without=NO_FLASH), of(attention_dropout=0.1))),
    fault("float32-checkpoint", "ATN325", "a float32 checkpoint", "loaded without a dtype, flash attention refuses",
          of(torch_dtype="float32")),
    fault("heads-indivisible", "ATN326", "32 heads over 6 kv heads", "an edited configuration",
          of(num_key_value_heads=6)),
    fault("config-damaged", "ATN327", "num_hidden_layers written as a word", "an edited configuration",
          of(num_hidden_layers="thirty"), "num_hidden_layers"),
    fault("mask-and-packing", "ATN402", "packing by hand, without a framework",
          "transformers finds documents without a mask alone", having(without=("trl",))),
    fault("cache-and-packing", "ATN403", "packing by hand on sdpa, the cache on",
          "the cache switches the separation off",
          both(having("transformers==5.17.0", without=("trl", *NO_FLASH)), of(use_cache=True))),
    fault("right-padding", "ATN404", "a Mistral under transformers 4.46.0, whose tokenizer pads right",
          "ValueError at the first batch",
          both(having("transformers==4.46.0"), of("mistral"))),
    fault("pad-missing", "ATN405", "a tokenizer without pad_token", "Llama's base models", tokenizer(pad_token=None)),
    fault("pad-is-eos", "ATN406", "a tokenizer that pads with its end token", "end tokens vanish from the labels",
          tokenizer(pad_token="</s>")),
    fault("left-padding", "ATN407", "a tokenizer that pads left", "a setting for generation",
          tokenizer(padding_side="left")),
    fault("mrope", "ATN408", "a Qwen2-VL under transformers 4.50.0", "three-row positions crash flash attention",
          both(having("transformers==4.50.0"), of("qwen2_vl", rope_scaling={"type": "mrope", "mrope_section": [16, 24,
                24]}))),
    fault("recurrent-packed", "ATN409", "a Qwen3-Next without its kernels",
          "state runs from one document into the next",
          both(having("transformers==5.17.0"), of("qwen3_next", **_NEXT))),
    fault("neat-packing-model", "ATN411", "LLaMA-Factory's neat packing for gpt-oss", "its collator raises",
          both(having("llamafactory==0.9.5"), of("gpt_oss", **_SINKS))),
    fault("tokenizer-damaged", "ATN412", "a tokenizer_config.json cut off", "a download that broke",
          raw("tokenizer_config.json", '{"pad_token": ')),
    fault("ring-window", "ATN501", "a Mistral with a window on a ring",
          "ring-flash-attn applies it to each block by itself", of("mistral", sliding_window=4096)),
    fault("ring-sinks", "ATN502", "a gpt-oss on a ring", "the adapter drops its sinks", of("gpt_oss", **_SINKS)),
    fault("ring-softcap", "ATN503", "a gemma2 on a ring", "ring-flash-attn asserts that there is none", of("gemma2",
          **_GEMMA2)),
    fault("ring-alibi", "ATN504", "a bloom on a ring", "ring-flash-attn asserts that there is none", of("falcon",
          alibi=True)),
    fault("ring-dropout", "ATN505", "attention_dropout on a ring", "each rank draws its own",
          of(attention_dropout=0.1)),
    fault("ring-bidirectional", "ATN506", "a BERT on a ring", "the adapter is causal only", of("bert",
          architectures=["BertForMaskedLM"])),
    fault("ring-mla", "ATN507", "a DeepSeek-V3 on a ring under transformers 5.17.0", "values are smaller than keys",
          both(having("transformers==5.17.0"), of("deepseek_v3", **_MLA))),
    fault("ring-stride", "ATN508", "8 kv heads under 32 heads", "heads_k_stride must divide the 8",
          of(num_key_value_heads=8), "8"),
    fault("ulysses-sizes", "ATN509", "28 heads over 4 kv heads beside DeepSpeed", "eight ranks do not divide them",
          both(having("deepspeed==0.18.0"), of(num_attention_heads=28, num_key_value_heads=4, head_dim=128))),
    fault("accelerate-windows", "ATN510", "a Mistral with accelerate 1.10", "its context parallelism drops the window",
          both(having("accelerate==1.10.0"), of("mistral", sliding_window=4096))),
    fault("ring-recurrent", "ATN511", "a Qwen3-Next on a ring", "its recurrent layers are cut into pieces",
          of("qwen3_next", **_NEXT)),
    fault("ulysses-mla", "ATN512", "a DeepSeek-V3 with DeepSpeed's Ulysses", "it asserts one shape of keys and values",
          both(having("deepspeed==0.18.0", "transformers==5.17.0"), of("deepseek_v3", **_MLA))),
    fault("ring-dtype", "ATN513", "a float16 model on a ring", "gradients of keys come back in bfloat16's precision",
          of(torch_dtype="float16")),
    fault("hub-kernel-backward", "ATN159", "8 kv heads, and the Hub's kernel of version 3",
          "its backward fails for grouped-query attention",
          both(having("kernels==0.16.0", "transformers==5.17.0", without=NO_FLASH), of(num_key_value_heads=8))),
)  # fmt: skip
