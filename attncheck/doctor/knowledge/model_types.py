"""The model types of each transformers release.

Source: CONFIG_MAPPING_NAMES in models/auto/configuration_auto.py (auto_mappings.py since 5.6) of the wheels 4.46.3,
4.48.3, 4.50.3, 4.51.3, 4.53.2, 4.55.4, 4.56.2, 4.57.3, 5.0.0, 5.3.0, 5.6.2, 5.9.0, 5.10.1, 5.14.1, 5.17.0, 5.20.2 and
5.23.0. A type is listed with the first of them that has it; a release between that one and the previous one may have it
too.
"""

import difflib

# The types of 4.46.3 are not listed.
LAST_READ = "5.23.0"
OLD_TYPES = "llama qwen2 qwen2_moe mistral mixtral gemma gemma2 gpt2 gpt_neox phi phi3 falcon deepseek_v2 mpt bloom opt"
NEW_TYPES: dict[str, str] = {
    "4.48.3": """
        aria aria_text bamba cohere2 colpali diffllama dinov2_with_registers emu3 idefics3_vision ijepa modernbert
        moonshine olmo2 textnet timm_wrapper vitpose vitpose_backbone
    """,
    "4.50.3": """
        aya_vision dab-detr depth_pro gemma3 gemma3_text got_ocr2 granitemoeshared granitevision helium mistral3
        prompt_depth_anything qwen2_5_vl rt_detr_v2 shieldgemma2 siglip2 smolvlm smolvlm_vision superglue zamba2
    """,
    "4.51.3": """
        deepseek_v3 glm4 llama4 llama4_text phi4_multimodal qwen3 qwen3_moe sam_vision_model
    """,
    "4.53.2": """
        arcee bitnet blip_2_qformer colqwen2 csm d_fine dia dots1 falcon_h1 gemma3n gemma3n_audio gemma3n_text
        gemma3n_vision glm4v glm4v_text granite_speech granitemoehybrid hgnet_v2 internvl internvl_vision janus
        kyutai_speech_to_text lightglue minimax mlcd qwen2_5_omni qwen2_5_vl_text qwen2_vl_text sam_hq
        sam_hq_vision_model smollm3 t5gemma timesfm vjepa2
    """,
    "4.55.4": """
        aimv2 aimv2_vision_model cohere2_vision deepseek_v2 deepseek_vl deepseek_vl_hybrid doge efficientloftr eomt
        ernie4_5 ernie4_5_moe evolla exaone4 fastspeech2_conformer_with_hifigan glm4_moe gpt_oss lfm2 mm-grounding-dino
        modernbert-decoder perception_encoder perception_lm voxtral voxtral_encoder xlstm
    """,
    "4.56.2": """
        apertus dinov3_convnext dinov3_vit florence2 glm4v_moe glm4v_moe_text hunyuan_v1_dense hunyuan_v1_moe kosmos-2.5
        metaclip_2 ovis2 sam2 sam2_hiera_det_model sam2_video sam2_vision_model seed_oss xcodec
    """,
    "4.57.3": """
        blt edgetam edgetam_video edgetam_vision_model flex_olmo lfm2_vl longcat_flash ministral olmo3 parakeet_ctc
        parakeet_encoder qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text
        siglip2_vision_model vaultgemma
    """,
    "5.0.0": """
        afmoe audioflamingo3 audioflamingo3_encoder cwm ernie4_5_vl_moe fast_vlm glm46v glm4_moe_lite glm4v_moe_vision
        glm4v_vision glm_image glm_image_text glm_image_vision glm_image_vqmodel glmasr glmasr_encoder jais2 lasr_ctc
        lasr_encoder layoutxlm lfm2_moe lighton_ocr lw_detr lw_detr_vit minimax_m2 ministral3 nanochat paddleocr_vl
        pe_audio pe_audio_encoder pe_audio_video pe_audio_video_encoder pe_video pe_video_encoder pixio sam3
        sam3_tracker sam3_tracker_video sam3_video sam3_vision_model sam3_vit_model solar_open t5gemma2 video_llama_3
        video_llama_3_vision
    """,
    "5.3.0": """
        colmodernvbert eomt_dinov3 eurobert exaone_moe glm_moe_dsa glm_ocr glm_ocr_text glm_ocr_vision higgs_audio_v2
        higgs_audio_v2_tokenizer modernvbert moonshine_streaming moonshine_streaming_encoder nemotron_h olmo_hybrid
        pp_doclayout_v2 pp_doclayout_v3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text t5gemma2_encoder timesfm2_5
        vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder
        vibevoice_asr voxtral_realtime voxtral_realtime_encoder voxtral_realtime_text youtu
    """,
    "5.6.2": """
        aimv2_text_model align_text_model align_vision_model altclip_text_model altclip_vision_model blip_2_vision_model
        blip_text_model blip_vision_model blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher
        bridgetower_text_model bridgetower_vision_model chameleon_vqgan chinese_clip_text_model chmv2 clap_audio_model
        clap_text_model clipseg_text_model clipseg_vision_model clvp_decoder clvp_encoder cohere_asr
        csm_depth_decoder_model dia_decoder dia_encoder emu3_text_model emu3_vqgan ernie4_5_vl_moe_text
        ernie4_5_vl_moe_vision fastspeech2_conformer_hifigan flava_image_model flava_multimodal_model flava_text_model
        florence_vision gemma4 gemma4_audio gemma4_text gemma4_vision git_vision_model granite_speech_encoder
        groupvit_text_model groupvit_vision_model hy_v3 idefics2_perceiver idefics2_vision idefics_perciever
        idefics_vision instructblip_qformer instructblip_vision_model instructblipvideo_qformer
        instructblipvideo_vision_model janus_vision_model janus_vqgan jina_embeddings_v3 kosmos_2_5_text_model
        kosmos_2_5_vision_model kosmos_2_text_model kosmos_2_vision_model llama4_vision_model metaclip_2_text_model
        metaclip_2_vision_model mistral4 mlcd_vision_model mllama_text_model mllama_vision_model moshi_depth
        musicflamingo musicgen_decoder musicgen_melody_decoder nomic_bert openai_privacy_filter owlv2_text_model
        owlv2_vision_model owlvit_text_model owlvit_vision_model paddleocr_vl_text paddleocr_vl_vision
        phi4_multimodal_audio phi4_multimodal_vision pi0 pix2struct_text_model pix2struct_vision_model pp_chart2table
        pp_lcnet pp_lcnet_v3 pp_ocrv5_mobile_det pp_ocrv5_mobile_rec pp_ocrv5_server_det pp_ocrv5_server_rec qianfan_ocr
        qianfan_ocr_vision qwen2_5_omni_audio_encoder qwen2_5_omni_bigvgan qwen2_5_omni_dit qwen2_5_omni_talker
        qwen2_5_omni_text qwen2_5_omni_thinker qwen2_5_omni_token2wav qwen2_5_omni_vision_encoder qwen2_5_vl_vision
        qwen2_vl_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_audio_encoder
        qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_omni_moe_thinker
        qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision sam3_detr_decoder sam3_detr_encoder
        sam3_geometry_encoder sam3_lite_text sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder
        sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder sam3_lite_text_text_model sam3_mask_decoder
        siglip2_text_model siglip_text_model slanet slanext speecht5_hifigan t5_gemma_module t5gemma2_decoder
        t5gemma2_text uvdoc uvdoc_backbone videomt xclip_text_model xclip_vision_model
    """,
    "5.9.0": """
        cohere2_moe deepseek_v4 deimv2 exaone4_5 exaone4_5_vision gemma4_assistant granite4_vision granite4_vision_text
        granite_speech_plus granite_speech_plus_encoder hrm_text hyperclovax laguna minicpmv4_6 minicpmv4_6_vision
        parakeet_tdt pp_formulanet rf_detr rf_detr_dinov2
    """,
    "5.10.1": """
        deepseek_ocr2 deepseek_ocr2_encoder deepseek_ocr2_sam_vision_model deepseek_ocr2_text deepseek_ocr2_vision
        gemma4_unified gemma4_unified_assistant gemma4_unified_audio gemma4_unified_text gemma4_unified_vision glmga
        mellum pp_lcnet_v4 pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec sapiens2
        sapiens2_head
    """,
    "5.14.1": """
        cosmos3_omni deepseek_v32 diffusion_gemma diffusion_gemma_text hunyuan_vl hunyuan_vl_text hunyuan_vl_vision
        inkling_audio inkling_mm_model inkling_text inkling_vision kimi_k25 kimi_k25_vision mimo_v2_flash minicpm3
        minimax_m3_vl minimax_m3_vl_text minimax_m3_vl_vision nemotron3_5_asr nemotron_asr_streaming
        nemotron_asr_streaming_encoder parakeet_rnnt qwen3_asr qwen3_asr_encoder radio tipsv2 tipsv2_dpt
        tipsv2_text_model tipsv2_vision_model videoprism videoprism_text_model videoprism_vision_model xcodec2 zaya
    """,
    "5.17.0": """
        axk1 axk2 canary canary_decoder cohere_compass cohere_compass_text cohere_compass_vision cosmos3_edge
        cosmos3_edge_text cosmos3_edge_vision esmc esmfold2 fun_asr_nano fun_asr_nano_encoder glm5_next glm5_next_text
        glm5_next_vision granite_speech5_ctc granite_speech5_encoder granite_swa granitemoe_swa hy_v4 kimi_linear
        muse_glimmer muse_glimmer_assistant muse_glimmer_text muse_glimmer_vision neomme neucodec qwen4_exp
        qwen4_exp_text qwen4_exp_vision step3p5 step3p5_vision step3p7 vibevoice
    """,
    "5.20.2": """
        bailing_hybrid beam edgetam_mask_decoder edgetam_prompt_encoder edgetam_video_mask_decoder
        edgetam_video_prompt_encoder embedding_gemma2 embedding_gemma2_text flava_image_codebook got_ocr2_vision gte
        hyperclovax_vision_v2 kolibri1 minicpmv4_7 minicpmv4_7_vision molmo2 molmo2_adapter molmo2_text molmo2_vision
        moss_transcribe_diarize moss_transcribe_diarize_audio muse_spark muse_spark_audio muse_spark_text
        muse_spark_vision nemotron3_diarization nemotron3_diarization_audio nemotron_h_omni ovis2_vision
        pp_chart2table_vision pp_doclayout_v4 pp_formulanet_text pp_formulanet_vision sam2_mask_decoder
        sam2_prompt_encoder sam2_video_mask_decoder sam2_video_prompt_encoder sam3_tracker_mask_decoder
        sam3_tracker_prompt_encoder sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder
        sam_hq_mask_decoder sam_hq_prompt_encoder sam_mask_decoder sam_prompt_encoder slanext_vision ultrabert
        unlimited_ocr unlimited_ocr_sam_vision_model unlimited_ocr_text unlimited_ocr_vision
        unlimited_ocr_vision_encoder vibevoice_diffusion
    """,
    "5.23.0": """
        dots3_note dots3_note_audio_encoder dots3_note_text dots3_note_vision_encoder flint gradium_phonon_tts
        granite_docling granite_docling_text granite_docling_vision inkling2 inkling2_text inkling2_vision internlm3
        iquestcoder jev lfm3 lfm3_vl lfm3_vl_vision minicpm_ocr minicpm_ocr_vision mistral_large4 mistral_large4_text
        nemo_speechlm nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio
        nemotron3_5_transcribe_word_timestamp pocket_tts pocket_tts_audio_tokenizer ultravbert
    """,
}
# Types that were removed -> first of those releases without them.
GONE: dict[str, str] = {
    "deta": "5.0.0",
    "efficientformer": "5.0.0",
    "ernie_m": "5.0.0",
    "gptsan-japanese": "5.0.0",
    "graphormer": "5.0.0",
    "jukebox": "5.0.0",
    "mctct": "5.0.0",
    "mega": "5.0.0",
    "nat": "5.0.0",
    "nezha": "5.0.0",
    "open-llama": "5.0.0",
    "perception_encoder": "5.0.0",
    "qdqbert": "5.0.0",
    "realm": "5.0.0",
    "retribert": "5.0.0",
    "speech_to_text_2": "5.0.0",
    "trajectory_transformer": "5.0.0",
    "transfo-xl": "5.0.0",
    "tvlt": "5.0.0",
    "van": "5.0.0",
    "vit_hybrid": "5.0.0",
    "xlm-prophetnet": "5.0.0",
    "code_llama": "5.6.2",
    "granitevision": "5.6.2",
    "mlcd": "5.6.2",
    "vibevoice_acoustic_tokenizer_decoder": "5.6.2",
    "vibevoice_acoustic_tokenizer_encoder": "5.6.2",
    "parakeet_tdt": "5.14.1",
}


def first_release_with(model_type: str) -> str:
    """Return the first release read that has the type; "" if it is not listed."""
    return next((release for release, names in NEW_TYPES.items() if model_type in names.split()), "")


def find_similar_type(model_type: str) -> str:
    """Return the type that `model_type` may be a misspelling of; "" if none is similar."""
    names = [*OLD_TYPES.split(), *(name for block in NEW_TYPES.values() for name in block.split())]
    return next(iter(difflib.get_close_matches(model_type, names, n=1, cutoff=0.85)), "")
