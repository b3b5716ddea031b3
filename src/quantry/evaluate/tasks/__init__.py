"""Task evaluators: score a model by the task it solves, such as top-1 accuracy or mAP. Used by searches and alone.

An evaluator is called with the path of a model and returns its score. ``direction`` says which scores are better, and
``fingerprint`` identifies everything else that the score depends on. Evaluators whose score is a mean over samples also
have ``size`` and ``per_sample``, so that a search can stop early on models that cannot win.
"""

from quantry.evaluate.tasks.average_precision import (
    IOU_THRESHOLDS,
    AveragePrecision,
    DetectionPrecision,
    ImageMatches,
    coco_average_precision,
    match_image,
    precision_intervals,
    summarize,
)
from quantry.evaluate.tasks.detections import (
    DECODERS,
    BoxDecoder,
    Decoder,
    Detections,
    RowDecoder,
    find_decoder,
    overlaps,
    suppress,
)
from quantry.evaluate.tasks.float_agreement import Closeness, FloatAgreement
from quantry.evaluate.tasks.image_evaluators import (
    class_count,
    classifier_evaluator,
    detector_evaluator,
    distance_evaluator,
    image_data,
)
from quantry.evaluate.tasks.labels import (
    CocoLabels,
    LabelledBoxes,
    LabelledFiles,
    coco_labels,
    labelled_arrays,
    labelled_images,
)
from quantry.evaluate.tasks.output_distance import OutputDistance
from quantry.evaluate.tasks.perplexity import Perplexity
from quantry.evaluate.tasks.rank_correlation import RankCorrelation, number_labels
from quantry.evaluate.tasks.task_evaluator import SampleMean, TaskEvaluator, TaskScore
from quantry.evaluate.tasks.top_accuracy import TopAccuracy

__all__ = [
    "DECODERS",
    "IOU_THRESHOLDS",
    "AveragePrecision",
    "BoxDecoder",
    "Closeness",
    "CocoLabels",
    "Decoder",
    "DetectionPrecision",
    "Detections",
    "FloatAgreement",
    "ImageMatches",
    "LabelledBoxes",
    "LabelledFiles",
    "OutputDistance",
    "Perplexity",
    "RankCorrelation",
    "RowDecoder",
    "SampleMean",
    "TaskEvaluator",
    "TaskScore",
    "TopAccuracy",
    "class_count",
    "classifier_evaluator",
    "coco_average_precision",
    "coco_labels",
    "detector_evaluator",
    "distance_evaluator",
    "find_decoder",
    "image_data",
    "labelled_arrays",
    "labelled_images",
    "match_image",
    "number_labels",
    "overlaps",
    "precision_intervals",
    "summarize",
    "suppress",
]
