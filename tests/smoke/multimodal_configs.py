"""Configurations of multimodal models, as their releases write what decides text, tower and pictures."""

from typing import Any

SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
          "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14}  # fmt: skip
CLIP = {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_hidden_layers": 24, "patch_size": 14, "image_size": 336, "projection_dim": 768}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064}  # fmt: skip
QWEN2 = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 152000}  # fmt: skip
QWEN_TOWER = {"depth": 32, "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN_TOKENS = {"image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
               "vision_end_token_id": 151653}  # fmt: skip
QWEN_TEXT = {"vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
             "num_key_value_heads": 4, "intermediate_size": 18944,
             "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", **QWEN_TEXT, **QWEN_TOKENS,
        "vision_config": {**QWEN_TOWER, "embed_dim": 1280, "mlp_ratio": 4, "in_chans": 3, "hidden_size": 3584},
    },
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl", **QWEN_TEXT, **QWEN_TOKENS,
        "vision_config": {**QWEN_TOWER, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584,
                          "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
    },
    "qwen3_vl": {
        "model_type": "qwen3_vl", **QWEN_TOKENS,
        "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 2560, "intermediate_size": 9728, "head_dim": 128,
                        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
                        "vocab_size": 151936, "rope_scaling": {"mrope_interleaved": True, "rope_type": "default",
                                                               "mrope_section": [24, 20, 20]}},
        "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
                          "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 2560,
                          "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]},
    },
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "boi_token_index": 255999,
        "eoi_token_index": 256000, "image_token_index": 262144, "mm_tokens_per_image": 256,
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "head_dim": 256,
                        "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
                        "sliding_window": 1024, "vocab_size": 262208},
        "vision_config": {**SIGLIP, "image_size": 896},
    },
    "paligemma": {
        "model_type": "paligemma", "image_token_index": 257152, "projection_dim": 2048, "hidden_size": 2048,
        "text_config": {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
                        "num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 257216,
                        "num_image_tokens": 256},
        "vision_config": {**SIGLIP, "image_size": 224, "projection_dim": 2048, "vision_use_head": False},
    },
    "llava": {"model_type": "llava", "image_token_index": 32000, "image_seq_length": 576, "vision_feature_layer": -2,
              "vision_feature_select_strategy": "default", "text_config": LLAMA, "vision_config": CLIP},
    "llava_next": {
        "model_type": "llava_next", "image_token_index": 32000, "vision_feature_layer": -2, "image_seq_length": 576,
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672]], "text_config": LLAMA, "vision_config": CLIP,
    },
    "llava_onevision": {
        "model_type": "llava_onevision", "image_token_index": 151646, "video_token_index": 151647,
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9",
        "image_grid_pinpoints": [[384, 384], [384, 768], [768, 384]], "text_config": QWEN2,
        "vision_config": {**SIGLIP, "image_size": 384, "vision_use_head": False},
    },
    "internvl": {
        "model_type": "internvl", "image_token_id": 151667, "image_seq_length": 256, "downsample_ratio": 0.5,
        "vision_feature_layer": -1, "text_config": QWEN2,
        "vision_config": {"model_type": "internvl_vision", "hidden_size": 1024, "num_attention_heads": 16,
                          "num_hidden_layers": 24, "intermediate_size": 4096, "image_size": [448, 448],
                          "patch_size": [14, 14]},
    },
    "idefics2": {
        "model_type": "idefics2", "image_token_id": 32001,
        "text_config": {**LLAMA, "model_type": "mistral", "num_key_value_heads": 8, "vocab_size": 32003},
        "perceiver_config": {"hidden_size": 4096, "resampler_depth": 3, "num_key_value_heads": 4,
                             "resampler_n_latents": 64},
        "vision_config": {**SIGLIP, "model_type": "idefics2", "image_size": 980},
    },
    "idefics3": {
        "model_type": "idefics3", "image_token_id": 128257, "scale_factor": 2,
        "text_config": {**LLAMA, "num_key_value_heads": 8, "vocab_size": 128259},
        "vision_config": {**SIGLIP, "model_type": "idefics3_vision", "image_size": 364},
    },
    "smolvlm": {
        "model_type": "smolvlm", "image_token_id": 49190, "scale_factor": 4,
        "text_config": {**LLAMA, "hidden_size": 960, "num_attention_heads": 15, "num_key_value_heads": 5,
                        "head_dim": 64, "vocab_size": 49280},
        "vision_config": {"model_type": "smolvlm_vision", "hidden_size": 768, "num_attention_heads": 12,
                          "num_hidden_layers": 12, "intermediate_size": 3072, "image_size": 512, "patch_size": 16},
    },
    "mistral3": {
        "model_type": "mistral3", "image_token_index": 10, "spatial_merge_size": 2, "vision_feature_layer": -1,
        "text_config": {**LLAMA, "model_type": "mistral", "hidden_size": 5120, "head_dim": 128,
                        "num_key_value_heads": 8, "vocab_size": 131072},
        "vision_config": {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "head_dim": 64,
                          "num_attention_heads": 16, "num_hidden_layers": 24, "image_size": 1540, "patch_size": 14},
    },
    "glm4v": {
        "model_type": "glm4v", "image_token_id": 151343, "video_token_id": 151344, "image_start_token_id": 151339,
        "image_end_token_id": 151340, "video_start_token_id": 151341, "video_end_token_id": 151342,
        "text_config": {"model_type": "glm4v_text", "hidden_size": 4096, "intermediate_size": 13696,
                        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2,
                        "vocab_size": 151552, "partial_rotary_factor": 0.5,
                        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12],
                                         "partial_rotary_factor": 0.5}},
        "vision_config": {"model_type": "glm4v_vision", "depth": 24, "hidden_size": 1536, "intermediate_size": 13696,
                          "num_heads": 12, "image_size": 336, "patch_size": 14, "out_hidden_size": 4096,
                          "spatial_merge_size": 2, "temporal_patch_size": 2},
    },
    "lfm2_vl": {
        "model_type": "lfm2_vl", "image_token_id": 396, "downsample_factor": 2, "projector_hidden_size": 2560,
        "text_config": {"model_type": "lfm2", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16,
                        "num_key_value_heads": 8, "vocab_size": 65536,
                        "layer_types": ["conv", "conv", "full_attention"]},
        "vision_config": {"model_type": "siglip2_vision_model", "hidden_size": 768, "intermediate_size": 3072,
                          "num_attention_heads": 12, "num_hidden_layers": 12, "patch_size": 16, "num_patches": 256,
                          "vision_use_head": False},
    },
}  # fmt: skip
