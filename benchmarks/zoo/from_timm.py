"""Architectures of timm."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.zoo.from_torchvision import import_torchvision
from benchmarks.zoo.subject import Subject, images


def _build(name: str, size: int = 64, **options: Any) -> Subject:
    import_torchvision()
    import timm

    module = timm.create_model(name, pretrained=False, num_classes=20, **options)
    return Subject(module, images("x", 3, size, size))


def _class(module: str, name: str, size: int = 64, **options: Any) -> Subject:
    """Build a class directly, where the function that timm registers fixes the options that make it large."""
    import_torchvision()
    from importlib import import_module

    found = import_module(f"timm.models.{module}")
    given = {key: getattr(found, value) if isinstance(value, str) else value for key, value in options.items()}
    return Subject(getattr(found, name)(num_classes=20, **given), images("x", 3, size, size))


def _multiscale_vit() -> Subject:
    import_torchvision()
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    settings = MultiScaleVitCfg(depths=(1, 1, 1, 1), embed_dim=32, num_heads=1)
    return Subject(MultiScaleVit(settings, img_size=64, num_classes=20), images("x", 3, 64, 64))


_MLP = {"img_size": 64, "num_blocks": 3, "embed_dim": 96}
_PLAIN = (
    *("test_byobnet", "test_convnext", "test_convnext2", "test_convnext3", "test_efficientnet"),
    *("test_efficientnet_evos", "test_efficientnet_gn", "test_efficientnet_ln", "test_mambaout", "test_nfnet"),
    *("test_resnet", "dla46x_c", "edgenext_xx_small", "efficientvit_b0", "ghostnet_050", "ghostnetv2_100"),
    *("hardcorenas_a", "lcnet_035", "mnasnet_small", "mobilenetv2_035", "mobilenetv3_small_050"),
    *("mobilenetv4_conv_small_035", "mobileone_s0", "mobilevit_xxs", "mobilevitv2_050", "regnetx_002", "regnety_002"),
    *("repghostnet_050", "repvit_m0_9", "resnet10t", "rexnetr_100", "semnasnet_075", "shvit_s1", "skresnet18"),
    *("spnasnet_100", "starnet_s1", "tf_efficientnet_lite0", "tf_mobilenetv3_small_minimal_100", "tinynet_e"),
    *("efficientnet_es", "convnextv2_atto", "fasternet_t0", "inception_next_atto", "fbnetc_100", "mixnet_s"),
)
"""Those that need no options to be small."""

_VIT = {"img_size": 64, "depth": 3}

BUILDERS: dict[str, Callable[[], Subject]] = {
    **{name: partial(_build, name) for name in _PLAIN},
    "beit": partial(_build, "beit_base_patch16_224", **_VIT, embed_dim=96, num_heads=3),
    "botnet26t": partial(_build, "botnet26t_256", img_size=64),
    "cait_xxs24": partial(_build, "cait_xxs24_224", **_VIT),
    "coat_lite_tiny": partial(_build, "coat_lite_tiny", img_size=64, serial_depths=(1, 1, 1, 1)),
    "coatnet_pico_rw": partial(_build, "coatnet_pico_rw_224", img_size=64),
    "convit_tiny": partial(_build, "convit_tiny", img_size=64, depth=4, local_up_to_layer=3),
    "convmixer": partial(_class, "convmixer", "ConvMixer", dim=96, depth=4, kernel_size=7, patch_size=7),
    "crossvit_tiny": partial(_build, "crossvit_tiny_240", 240),
    "davit_tiny": partial(
        _build, "davit_tiny", depths=(1, 1, 1, 1), embed_dims=(32, 64, 96, 128), num_heads=(1, 2, 3, 4)
    ),
    "deit3": partial(_build, "deit3_small_patch16_224", **_VIT, embed_dim=96, num_heads=3),
    "eca_nfnet_l0": partial(_build, "eca_nfnet_l0"),
    "efficientformer_l1": partial(_build, "efficientformerv2_s0", 224),
    "eva02_tiny": partial(_build, "eva02_tiny_patch14_224", 56, img_size=56, depth=3),
    "fastvit_t8": partial(_build, "fastvit_t8"),
    "focalnet_tiny": partial(_class, "focalnet", "FocalNet", depths=(1, 1, 1, 1), embed_dim=32),
    "gcvit_xxtiny": partial(_build, "gcvit_xxtiny", 224),
    "gmixer": partial(_class, "mlp_mixer", "MlpMixer", **_MLP, mlp_layer="GluMlp"),
    "gmlp_ti16": partial(
        _class, "mlp_mixer", "MlpMixer", **_MLP, mlp_ratio=4, block_layer="SpatialGatingBlock", mlp_layer="GatedMlp"
    ),
    "halonet26t": partial(_build, "halonet26t", 256),
    "hgnetv2_b0": partial(_build, "hgnetv2_b0"),
    "hiera": partial(_build, "hiera_tiny_224", img_size=64, embed_dim=32, stages=(1, 1, 1, 1)),
    "hrnet_w18_small": partial(_build, "hrnet_w18_small"),
    "lambda_resnet26t": partial(_build, "lambda_resnet26rpt_256", img_size=64),
    "levit_128s": partial(_build, "levit_128s", 224),
    "mixer": partial(_class, "mlp_mixer", "MlpMixer", **_MLP),
    "mvitv2_tiny": _multiscale_vit,
    "nest_tiny": partial(
        _class, "nest", "Nest", img_size=64, depths=(1, 1, 2), embed_dims=(32, 64, 96), num_heads=(1, 2, 3)
    ),
    "nf_regnet_b0": partial(_build, "nf_regnet_b0"),
    "pit_ti": partial(_build, "pit_ti_224", img_size=64),
    "poolformer": partial(_class, "metaformer", "MetaFormer", depths=(1, 1, 1, 1), dims=(32, 48, 64, 96)),
    "pvt_v2_b0": partial(_build, "pvt_v2_b0", depths=(1, 1, 1, 1)),
    "res2net": partial(_build, "res2net50_14w_8s", layers=(1, 1, 1, 1)),
    "resmlp_12": partial(
        _class, "mlp_mixer", "MlpMixer", **_MLP, mlp_ratio=4, block_layer="ResBlock", norm_layer="Affine"
    ),
    "resnest14d": partial(_build, "resnest14d"),
    "resnetv2": partial(_build, "resnetv2_50", layers=(1, 1, 1, 1)),
    "sequencer2d_s": partial(
        _build,
        "sequencer2d_s",
        img_size=64,
        layers=(1, 1, 1, 1),
        embed_dims=(48, 96, 96, 96),
        hidden_sizes=(12, 24, 24, 24),
    ),
    "swiftformer_xs": partial(_build, "swiftformer_xs"),
    "swinv2_tiny": partial(
        _build, "swinv2_tiny_window8_256", img_size=128, embed_dim=24, depths=(1, 1, 2, 1), window_size=4, size=128
    ),
    "tiny_vit_5m": partial(_build, "tiny_vit_5m_224", 224),
    "tnt_s": partial(_build, "tnt_s_legacy_patch16_224", img_size=64, depth=3),
    "tresnet": partial(_build, "tresnet_m", layers=(1, 1, 1, 1)),
    "twins_pcpvt": partial(_build, "twins_pcpvt_small", img_size=64, depths=(1, 1, 1, 1)),
    "visformer_tiny": partial(_build, "visformer_tiny", img_size=64),
    "vit_relpos": partial(_build, "vit_relpos_small_patch16_224", **_VIT, embed_dim=96, num_heads=3),
    "vit_tiny": partial(_build, "vit_tiny_patch16_224", **_VIT),
    "volo_d1": partial(
        _class, "volo", "VOLO", img_size=64, layers=(1, 1, 1, 1), embed_dims=(48, 96, 96, 96), num_heads=(3, 6, 6, 6)
    ),
    "vovnet": partial(_build, "ese_vovnet19b_slim_dw"),
    "xcit_nano": partial(_build, "xcit_nano_12_p16_224", **_VIT),
}
