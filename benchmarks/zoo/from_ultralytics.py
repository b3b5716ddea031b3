"""Detectors, and models of other tasks, of ultralytics."""

from collections.abc import Callable
from functools import partial

from benchmarks.zoo.from_torchvision import import_torchvision
from benchmarks.zoo.subject import Subject, images

_MODELS = {
    "yolov5n": ("DetectionModel", "yolov5n.yaml"),
    "yolov8n": ("DetectionModel", "yolov8n.yaml"),
    "yolov8n-cls": ("ClassificationModel", "yolov8n-cls.yaml"),
    "yolov8n-obb": ("OBBModel", "yolov8n-obb.yaml"),
    "yolov8n-pose": ("PoseModel", "yolov8n-pose.yaml"),
    "yolov8n-seg": ("SegmentationModel", "yolov8n-seg.yaml"),
    "yolov9t": ("DetectionModel", "yolov9t.yaml"),
    "yolov10n": ("DetectionModel", "yolov10n.yaml"),
    "yolo11n": ("DetectionModel", "yolo11n.yaml"),
    "yolo12n": ("DetectionModel", "yolo12n.yaml"),
    "yolo26n": ("DetectionModel", "yolo26n.yaml"),
}


def _build(kind: str, file: str) -> Subject:
    import_torchvision()
    from ultralytics.nn import tasks

    module = getattr(tasks, kind)(file, verbose=False)
    head = module.model[-1]
    # What ultralytics' own exporter sets: one output of rows, no training branches.
    head.export, head.format, head.dynamic = True, "onnx", False
    return Subject(module, images("x", 3, 64, 64))


BUILDERS: dict[str, Callable[[], Subject]] = {name: partial(_build, *found) for name, found in _MODELS.items()}
