"""Architectures of torchvision."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.zoo.subject import Subject, images

_MISSING = "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[Any] = []


def import_torchvision() -> Any:
    """Return torchvision; its wheels for GPUs cannot load their operators on a CPU build of torch.

    Importing it needs two of them to be known, and none of the architectures here calls them.
    """
    import torch

    if not _libraries and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        library.define(_MISSING)
        library.define(f"q{_MISSING}")
        _libraries.append(library)  # its operators are gone when it is
    import torchvision

    return torchvision


def _classifier(name: str, size: int = 64, **options: Any) -> Subject:
    torchvision = import_torchvision()
    if name == "googlenet":
        options |= {"aux_logits": False, "init_weights": False}
    module = getattr(torchvision.models, name)(weights=None, num_classes=20, **options)
    return Subject(module, images("x", 3, size, size))


def _segmenter(name: str, size: int = 64) -> Subject:
    torchvision = import_torchvision()
    module = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
    return Subject(module, images("input" if name.startswith("lraspp") else "x", 3, size, size))


def _video(name: str, frames: int = 4, size: int = 32) -> Subject:
    torchvision = import_torchvision()
    return Subject(
        getattr(torchvision.models.video, name)(weights=None, num_classes=20), images("x", 3, frames, size, size)
    )


def _resnet(block: str, layers: tuple[int, ...], **options: Any) -> Subject:
    resnet = import_torchvision().models.resnet
    module = resnet.ResNet(getattr(resnet, block), list(layers), num_classes=20, **options)
    return Subject(module, images("x", 3, 64, 64))


def _vit() -> Subject:
    module = import_torchvision().models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=3, num_heads=4, hidden_dim=128, mlp_dim=256, num_classes=20
    )
    return Subject(module, images("x", 3, 64, 64))


def _swin(version: int) -> Subject:
    swin = import_torchvision().models.swin_transformer
    options: dict[str, Any] = {"num_classes": 20, "stochastic_depth_prob": 0.0}
    if version == 2:
        options |= {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    module = swin.SwinTransformer([4, 4], 48, [2, 2], [3, 6], [4, 4], **options)
    return Subject(module, images("x", 3, 64, 64))


def _maxvit() -> Subject:
    module = import_torchvision().models.MaxVit((64, 64), 32, 2, [32, 64], [1, 1], 16, 0.0, num_classes=20)
    return Subject(module, images("x", 3, 64, 64))


def _convnext() -> Subject:
    convnext = import_torchvision().models.convnext
    sizes = ((32, 64, 1), (64, 128, 1), (128, None, 2))
    settings = [convnext.CNBlockConfig(*size) for size in sizes]
    return Subject(convnext.ConvNeXt(settings, num_classes=20), images("x", 3, 64, 64))


def _raft() -> Subject:
    module = import_torchvision().models.optical_flow.raft_small(weights=None)
    first, second = images("image1", 3, 128, 128), images("image2", 3, 128, 128)
    # One update; its correlation pyramid needs at least 128 x 128 pixels.
    return Subject(
        module, lambda random: {**first(random), **second(random)}, {"num_flow_updates": 1}, both_exporters=False
    )


def _ssdlite_backbone() -> Subject:
    detector = import_torchvision().models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    )
    import torch

    class Rows(torch.nn.Module):  # type: ignore[misc]
        """Backbone and head: choosing boxes is not part of what accelerators run."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = detector.backbone, detector.head

        def forward(self, x: Any) -> Any:
            return self.head(list(self.backbone(x).values()))

    return Subject(Rows(), images("x", 3, 128, 128))


BUILDERS: dict[str, Callable[[], Subject]] = {
    "convnext": _convnext,
    "deeplabv3_mobilenet_v3_large": partial(_segmenter, "deeplabv3_mobilenet_v3_large"),
    "densenet": partial(_classifier, "densenet121", 32),
    "efficientnet_b0": partial(_classifier, "efficientnet_b0"),
    "googlenet": partial(_classifier, "googlenet"),
    "lraspp_mobilenet_v3_large": partial(_segmenter, "lraspp_mobilenet_v3_large"),
    "maxvit": _maxvit,
    "mc3_18": partial(_video, "mc3_18"),
    "mnasnet0_5": partial(_classifier, "mnasnet0_5"),
    "mobilenet_v2": partial(_classifier, "mobilenet_v2"),
    "mobilenet_v3_small": partial(_classifier, "mobilenet_v3_small"),
    "raft_small": _raft,
    "regnet_y_400mf": partial(_classifier, "regnet_y_400mf"),
    "resnet18": partial(_resnet, "BasicBlock", (1, 1, 1, 1)),
    "resnet50": partial(_resnet, "Bottleneck", (1, 1, 1, 1)),
    "resnext": partial(_resnet, "Bottleneck", (1, 1, 1, 1), groups=8, width_per_group=4),
    "shufflenet_v2_x0_5": partial(_classifier, "shufflenet_v2_x0_5"),
    "squeezenet1_1": partial(_classifier, "squeezenet1_1"),
    "ssdlite320": _ssdlite_backbone,
    "swin": partial(_swin, 1),
    "swin_v2": partial(_swin, 2),
    "vit": _vit,
}
