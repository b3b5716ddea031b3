"""Architectures of transformers, each with a small configuration."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.zoo.from_torchvision import import_torchvision
from benchmarks.zoo.subject import Sample, Subject, images, sounds, tokens

_WORDS, _LENGTH = 200, 16
_BODY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_TEXT = {**_BODY, "vocab_size": _WORDS, "max_position_embeddings": 64}
_PICTURE = {**_BODY, "image_size": 32, "patch_size": 8}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 16}


def _build(name: str, config: str, draw: Any, settings: dict[str, Any] | None = None, **options: Any) -> Subject:
    import_torchvision()
    import transformers

    module = getattr(transformers, name)(getattr(transformers, config)(**options))
    # The same settings for all: plain tuples of tensors, and no cache of keys that torch.export would have to open.
    settings = {"return_dict": False, **(settings or {})}
    return Subject(module, draw, settings, both_exporters=False)


def _text(name: str, config: str, **options: Any) -> Callable[[], Subject]:
    draw = tokens(_WORDS, _LENGTH, "input_ids", "attention_mask")
    return partial(_build, name, config, draw, None, **{**_TEXT, **options})


def _decoder(name: str, config: str, **options: Any) -> Callable[[], Subject]:
    draw = tokens(_WORDS, _LENGTH, "input_ids")
    return partial(_build, name, config, draw, {"use_cache": False}, **options)


def _vision(name: str, config: str, size: int = 32, **options: Any) -> Callable[[], Subject]:
    return partial(_build, name, config, images("pixel_values", 3, size, size), None, **options)


def _both_sides(random: np.random.Generator) -> Sample:
    words = tokens(_WORDS, _LENGTH, "input_ids")(random)
    return {**words, "decoder_input_ids": tokens(_WORDS, 8, "decoder_input_ids")(random)["decoder_input_ids"]}


def _picture_and_text(random: np.random.Generator) -> Sample:
    return {**tokens(_WORDS, _LENGTH, "input_ids")(random), **images("pixel_values", 3, 32, 32)(random)}


def _spectrum_and_text(random: np.random.Generator) -> Sample:
    words = tokens(_WORDS, 8, "decoder_input_ids")(random)
    return {**sounds("input_features", 16, 64)(random), **words}


_GPT2 = {"vocab_size": _WORDS, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
_SEQUENCE = {
    "vocab_size": _WORDS,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_SPEECH = {
    **_BODY,
    "vocab_size": 32,
    "conv_dim": (32, 32),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_TOWER = {**_BODY, "projection_dim": 32}
_CLIP = {
    "text_config": {**_TEXT, **_TOWER, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1},
    "vision_config": {**_PICTURE, **_TOWER},
    "projection_dim": 32,
}

BUILDERS: dict[str, Callable[[], Subject]] = {
    "albert": _text("AlbertModel", "AlbertConfig", embedding_size=32),
    "bert": _text("BertForSequenceClassification", "BertConfig", num_labels=20),
    "convbert": _text("ConvBertModel", "ConvBertConfig", embedding_size=32),
    "deberta_v2": _text("DebertaV2Model", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "distilbert": partial(
        _build,
        "DistilBertModel",
        "DistilBertConfig",
        tokens(_WORDS, _LENGTH, "input_ids", "attention_mask"),
        None,
        vocab_size=_WORDS,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
        max_position_embeddings=64,
    ),
    "electra": _text("ElectraForTokenClassification", "ElectraConfig", embedding_size=32),
    "mobilebert": _text(
        "MobileBertModel", "MobileBertConfig", embedding_size=32, true_hidden_size=32, intra_bottleneck_size=32
    ),
    "modernbert": _text("ModernBertModel", "ModernBertConfig", pad_token_id=0),
    "mpnet": _text("MPNetModel", "MPNetConfig"),
    "roberta": _text("RobertaForQuestionAnswering", "RobertaConfig", pad_token_id=1),
    "squeezebert": _text("SqueezeBertModel", "SqueezeBertConfig", embedding_size=64),
    "bloom": _decoder("BloomForCausalLM", "BloomConfig", vocab_size=_WORDS, hidden_size=64, n_layer=2, n_head=4),
    "falcon": _decoder("FalconForCausalLM", "FalconConfig", **_TEXT, alibi=False),
    "gemma2": _decoder("Gemma2ForCausalLM", "Gemma2Config", **_GROUPED),
    "gpt2": _decoder("GPT2LMHeadModel", "GPT2Config", **_GPT2),
    "gpt_neox": _decoder("GPTNeoXForCausalLM", "GPTNeoXConfig", **_TEXT),
    "llama": _decoder("LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    "mamba": _decoder("MambaForCausalLM", "MambaConfig", vocab_size=_WORDS, hidden_size=32, num_hidden_layers=1),
    "mistral": _decoder("MistralForCausalLM", "MistralConfig", **_GROUPED),
    "olmo": _decoder("OlmoForCausalLM", "OlmoConfig", **_TEXT, num_key_value_heads=2),
    "opt": _decoder(
        "OPTForCausalLM",
        "OPTConfig",
        vocab_size=_WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        ffn_dim=128,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=64,
    ),
    "phi3": _decoder("Phi3ForCausalLM", "Phi3Config", **_TEXT, num_key_value_heads=2, pad_token_id=0),
    "qwen3": _decoder("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED),
    "bart": partial(_build, "BartModel", "BartConfig", _both_sides, {"use_cache": False}, **_SEQUENCE),
    "t5": partial(
        _build,
        "T5Model",
        "T5Config",
        _both_sides,
        {"use_cache": False},
        vocab_size=_WORDS,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
    ),
    "whisper": partial(
        _build,
        "WhisperModel",
        "WhisperConfig",
        _spectrum_and_text,
        {"use_cache": False},
        **_SEQUENCE,
        num_mel_bins=16,
        max_source_positions=32,
        max_target_positions=32,
    ),
    "wav2vec2": partial(_build, "Wav2Vec2ForCTC", "Wav2Vec2Config", sounds("input_values", 800), None, **_SPEECH),
    "audio_spectrogram": partial(
        _build,
        "ASTModel",
        "ASTConfig",
        sounds("input_values", 64, 32),
        None,
        **_BODY,
        max_length=64,
        num_mel_bins=32,
        patch_size=8,
        time_stride=8,
        frequency_stride=8,
    ),
    "clip": partial(_build, "CLIPModel", "CLIPConfig", _picture_and_text, None, **_CLIP),
    "siglip": partial(_build, "SiglipModel", "SiglipConfig", _picture_and_text, None, **_CLIP),
    "convnextv2": _vision(
        "ConvNextV2Model", "ConvNextV2Config", 64, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]
    ),
    "dinov2": _vision("Dinov2Model", "Dinov2Config", **_PICTURE),
    "mobilevit": _vision(
        "MobileViTModel",
        "MobileViTConfig",
        64,
        hidden_sizes=[32, 48, 64],
        neck_hidden_sizes=[16, 16, 32, 48, 64, 80, 96],
        image_size=64,
    ),
    "segformer": _vision(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        64,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=64,
    ),
    "swin2sr": _vision(
        "Swin2SRForImageSuperResolution",
        "Swin2SRConfig",
        32,
        image_size=32,
        embed_dim=24,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
        upscale=2,
    ),
    "vit": _vision("ViTForImageClassification", "ViTConfig", **_PICTURE, num_labels=20),
    "yolos": _vision(
        "YolosForObjectDetection", "YolosConfig", **{**_PICTURE, "image_size": [32, 32], "num_detection_tokens": 8}
    ),
    "glpn": _vision(
        "GLPNForDepthEstimation",
        "GLPNConfig",
        64,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=32,
    ),
    "resnet": _vision(
        "ResNetModel", "ResNetConfig", 64, embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]
    ),
    "levit": _vision(
        "LevitModel",
        "LevitConfig",
        64,
        image_size=64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
}
