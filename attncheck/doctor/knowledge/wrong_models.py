"""Models that transformers computes silently wrong: type, implementation, kind of batch, releases, location.

Source: every type of MODEL_FOR_CAUSAL_LM_MAPPING_NAMES of transformers 5.17.0, as a tiny random model in float32 on a
CPU, with eager and sdpa. Logits and gradients of two separate documents were compared with those of packed rows
(position_ids restart, no mask) and padded rows. The script uses no code of attncheck (tests/smoke/types/judge.py;
test_table.py next to it runs each row again). Releases: the modelling files of the wheels 4.53.1, 4.53.3, 4.54.0,
4.55.4, 4.56.2, 4.57.6, 5.0.0, 5.1.0, 5.3.0, 5.6.2, 5.9.0, 5.10.1, 5.12.1, 5.14.1, 5.15.0, 5.17.0, 5.18.0, 5.20.2,
5.22.2 and 5.23.0, read on 2026-11-23. A boundary is the first release read that contains the change. Before 4.53.1 only
flash attention keeps packed documents apart (`knowledge.padding`). ATN409 covers models with recurrent layers.
"""

from typing import Literal, NamedTuple

LAST_READ = "5.23.0"
Batching = Literal["any", "packed", "left padding"]  # "any": also a single document
# Matches the mask calls of a modelling file (`Model.mask_calls`), one per line.
_WITHOUT_POSITIONS = r"create_causal_mask\((?!.*\bposition_ids\b)"
_WITHOUT_POSITIONS_OR_OWN_MASK = rf"\A\Z|{_WITHOUT_POSITIONS}"
_ALWAYS_BIDIRECTIONAL = r"\A(?!.*create_causal_mask)(?=.*create_bidirectional_mask)"


class WrongModel(NamedTuple):
    """A defect of some model types since release `since`, before release `before` ("": still in the last one read).

    `shown_by` is a regular expression that finds the defect in the mask calls of a type's modelling file; "" if only
    the release shows it. `beyond_chunk`: only in rows longer than the attention's chunk. `works` are alternatives that
    were measured to be right with the same weights: implementations, "padding" on either side, or "right padding" only.
    """

    model_types: tuple[str, ...]
    implementations: tuple[str, ...]
    batching: Batching
    since: str
    before: str
    defect: str
    source: str
    works: tuple[str, ...] = ("padding",)
    shown_by: str = ""
    beyond_chunk: bool = False

    @property
    def only_eager(self) -> bool:
        """Whether the types have no sdpa: every type was measured with both, and sdpa is neither wrong nor right."""
        return self.implementations == ("eager",) and "sdpa" not in self.works


WRONG_MODELS: tuple[WrongModel, ...] = (
    WrongModel(
        ("doge",), ("sdpa",), "any", "4.54.0", "5.18.0",
        "its attention is not causal: sdpa gets the dynamic mask, but no causal mask",
        "models/doge/modeling_doge.py: DogeModel.forward, DogeAttention.prepare_dynamic_mask",
        ("eager",), r"create_causal_mask\((?!.*allow_is_causal_skip)",
    ),
    WrongModel(
        ("moshi",), ("eager",), "any", "4.53.1", "5.18.0",
        "its attention is not causal without an attention_mask, because then no causal mask is built",
        "models/moshi/modeling_moshi.py: MoshiModel.forward (`causal_mask = None`)",
        ("sdpa",), r"\A(?!(.*\n)*create_causal_mask)",
    ),
    WrongModel(
        ("big_bird", "megatron-bert", "rembert", "roformer"), ("eager",), "any", "5.9.0", "5.18.0",
        "its attention is not causal although is_decoder is set: create_bidirectional_mask is always called",
        "models/rembert/modeling_rembert.py: RemBertModel.forward, and similar",
        (), rf"(?s){_ALWAYS_BIDIRECTIONAL}",
    ),
    WrongModel(
        ("moshi",), ("sdpa",), "packed", "4.53.1", "5.18.0",
        "packed documents attend to each other: without an attention_mask no mask is built",
        "models/moshi/modeling_moshi.py: MoshiModel.forward (`causal_mask = None`)",
        shown_by=r"\A(?!(.*\n)*create_causal_mask)",
    ),
    WrongModel(
        ("afmoe",), ("eager", "sdpa"), "packed", "5.0.0", "",
        "packed documents attend to each other: its masks ignore position_ids",
        "models/afmoe/modeling_afmoe.py: AfmoeModel.forward (`mask_kwargs`)",
        shown_by=_WITHOUT_POSITIONS,
    ),
    WrongModel(
        ("gpt_oss",), ("eager",), "packed", "4.55.4", "",
        "packed documents attend to each other: its masks ignore position_ids",
        "models/gpt_oss/modeling_gpt_oss.py: GptOssModel.forward (`mask_kwargs`)",
        shown_by=_WITHOUT_POSITIONS,
    ),
    WrongModel(
        ("falcon", "opt"), ("eager", "sdpa"), "packed", "4.53.1", "",
        "packed documents attend to each other: its mask ignores position_ids",
        "models/falcon/modeling_falcon.py: FalconModel.forward; models/opt/modeling_opt.py: OPTDecoder.forward",
        shown_by=_WITHOUT_POSITIONS_OR_OWN_MASK,
    ),
    WrongModel(
        ("biogpt",), ("eager", "sdpa"), "packed", "4.53.1", "",
        "packed documents attend to each other: its mask ignores position_ids",
        "models/biogpt/modeling_biogpt.py: BioGptModel.forward",
        ("right padding",),
        shown_by=_WITHOUT_POSITIONS_OR_OWN_MASK,
    ),
    WrongModel(
        ("xglm",), ("eager",), "packed", "4.53.1", "",
        "packed documents attend to each other: its mask ignores position_ids",
        "models/xglm/modeling_xglm.py: XGLMModel.forward",
        ("right padding",),
        shown_by=_WITHOUT_POSITIONS_OR_OWN_MASK,
    ),
    WrongModel(
        ("bigbird_pegasus", "mvp", "trocr"), ("eager",), "packed", "5.0.0", "",
        "packed documents attend to each other: forward accepts position_ids and ignores them",
        "models/mvp/modeling_mvp.py: MvpForCausalLM.forward(**kwargs), and similar",
        ("right padding",),
    ),
    WrongModel(
        ("openai-gpt",), ("eager",), "packed", "4.53.1", "",
        ("packed documents attend to each other: its causal mask is a fixed buffer without "
"document boundaries"),
        "models/openai/modeling_openai.py: Attention._attn",
        ("right padding",),
        shown_by=r"\A\Z",
    ),
    WrongModel(
        (
            *("bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie", "roberta", "roc_bert"),
            *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
        ),
        ("eager", "sdpa"), "packed", "5.0.0", "",
        "packed documents attend to each other: its mask ignores position_ids",
        "models/bert/modeling_bert.py: BertModel._create_attention_masks, and similar",
        ("right padding",),
        shown_by=_WITHOUT_POSITIONS,
    ),
    WrongModel(
        ("bloom", "mpt"), ("eager",), "packed", "4.53.1", "",
        "packed documents attend to each other: forward accepts position_ids and ignores them",
        "models/bloom/modeling_bloom.py: BloomForCausalLM.forward(**kwargs); models/mpt/modeling_mpt.py",
    ),
    WrongModel(
        ("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "pegasus", "plbart"), ("eager", "sdpa"),
        "packed", "5.0.0", "",
        "packed documents attend to each other: forward accepts position_ids and ignores them",
        "models/bart/modeling_bart.py: BartForCausalLM.forward(**kwargs), and similar",
        ("right padding",),
    ),
    WrongModel(
        ("llama4", "llama4_text"), ("eager", "sdpa"), "packed", "4.53.1", "",
        "attention chunks start at the packed row's first token, not at the document's",
        "masking_utils.py: chunked_overlay",
        beyond_chunk=True,
    ),
    WrongModel(
        ("deepseek_v4",), ("eager",), "packed", "5.9.0", "",
        "packed documents attend to each other: keys are compressed in blocks that start with the row",
        "models/deepseek_v4/modeling_deepseek_v4.py: DeepseekV4HCACompressor, DeepseekV4CSACompressor",
        ("right padding",),
    ),
    WrongModel(
        ("deepseek_v4",), ("eager",), "left padding", "5.9.0", "",
        ("keys are compressed in blocks that start with the row, so padding and document share "
"blocks"),
        "models/deepseek_v4/modeling_deepseek_v4.py: DeepseekV4HCACompressor, DeepseekV4CSACompressor",
        ("right padding",),
    ),
    WrongModel(
        ("qwen4_exp_text",), ("eager",), "left padding", "5.17.0", "",
        "left padding gives NaN: the mask of selected tokens and the causal mask add up to minus infinity",
        "models/qwen4_exp/modeling_qwen4_exp.py: Qwen4ExpTextQSAIndexer.forward (`min_dtype`)",
        ("sdpa", "right padding"),
    ),
)  # fmt: skip
