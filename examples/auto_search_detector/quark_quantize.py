"""Automatic search for a detector with a mean average precision of its own, as AMD Quark's guide has it.

    python quark_quantize.py --input_model_path model.onnx --calibration_dataset_path images/

Without arguments it searches the embedded detector on generated scenes. With a model of your own, images and their
boxes (COCO's format) are read from folders; `decode` below says how rows of a YOLOX become boxes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from quantry import demo
from quantry.data.images import ImageFolder, ImageOptions
from quantry.evaluate.tasks import detector_evaluator
from quantry.onnx import Config, get_default_config
from quantry.onnx.auto_search import AutoSearch, AutoSearchConfig_Default


class DetectorSearch(AutoSearchConfig_Default):
    """Spaces of the default configuration, with mean average precision as the metric."""

    search_metric_tolerance = 0.05
    search_output_dir = "auto_search_detector"
    search_stop_condition = {"find_n_candidates": 1, "iteration_limit": 10, "time_limit": 600}  # noqa: RUF012


def embedded_evaluator(scenes: int) -> Any:
    """The metric written out: session, post-processing, labelled data, score."""

    def custom_evaluator(onnx_path: str, **args: Any) -> float:
        import onnxruntime

        del args  # data, folders and the configuration, for evaluators that want them
        session = onnxruntime.InferenceSession(onnx_path, providers=["CPUExecutionProvider"])

        def run(images: np.ndarray) -> np.ndarray:
            return session.run(None, {demo.INPUT_NAME: images})[0]

        matches = []
        for scene in demo.evaluation_scenes(scenes):
            (found,) = demo.decode(run(demo.image_tensor(scene)))
            matches.append(demo.match_image(found, scene.boxes, scene.labels, len(demo.CLASS_NAMES)))
        return demo.summarize(matches).map

    return custom_evaluator


def main() -> None:
    """Search, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input_model_path", type=Path, help="float detector; default: the embedded one")
    parser.add_argument("--calibration_dataset_path", type=Path, help="folder of images to calibrate on")
    parser.add_argument("--evaluation_dataset_path", type=Path, help="folder of labelled images; default: the same")
    parser.add_argument("--annotations", type=Path, help="their boxes, a COCO file")
    parser.add_argument("--config", default="S8S8_AAWS", help="configuration to start from")
    parser.add_argument("--color", default="BGR", help="order of the channels: RGB or BGR")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 to finetune there (search_space_with_GPU)")
    parser.add_argument("--scenes", type=int, default=100, help="generated scenes to evaluate on")
    parser.add_argument("--samples", type=int, default=16, help="samples to calibrate on")
    parser.add_argument("--trials", type=int, help="largest number of trials")
    parser.add_argument("--output_dir", default=DetectorSearch.search_output_dir)
    arguments = parser.parse_args()

    auto_search_config = DetectorSearch()
    auto_search_config.search_output_dir = arguments.output_dir
    if arguments.trials:
        auto_search_config.search_stop_condition = {"iteration_limit": arguments.trials}
    embedded = arguments.input_model_path is None or arguments.annotations is None
    images = ImageOptions(resize="letterbox", color=arguments.color)
    model = arguments.input_model_path or demo.model_path()
    if arguments.calibration_dataset_path is None:
        reader: Any = demo.calibration_inputs(arguments.samples)
    else:
        reader = ImageFolder(arguments.calibration_dataset_path, images)
    if arguments.input_model_path is None:
        auto_search_config.search_evaluator = embedded_evaluator(arguments.scenes)
    elif not embedded:
        folder = arguments.evaluation_dataset_path or arguments.calibration_dataset_path
        auto_search_config.search_evaluator = detector_evaluator(model, folder, arguments.annotations, options=images)
    else:
        auto_search_config.search_metric = "cos"  # no labels: compare outputs

    quant_config = Config(global_quant_config=get_default_config(arguments.config))
    auto_search_ins = AutoSearch(
        config=quant_config,
        auto_search_config=auto_search_config,
        model_input=str(model),
        calibration_data_reader=reader,
    )
    # Several spaces, in the order in which they are to be tried.
    if arguments.device == "cpu":
        space1 = auto_search_ins.build_all_configs(auto_search_config.search_space_XINT8)
        space2 = auto_search_ins.build_all_configs(auto_search_config.search_space)
    else:
        space1 = auto_search_ins.build_all_configs(auto_search_config.search_space_with_GPU)
        space2 = []
    auto_search_ins.all_configs = space1 + space2
    for candidate in auto_search_ins.search_model():
        print(f"{candidate['config_index']:3d}  difference {candidate['difference']:.4f}  {candidate['model_path']}")
        print(f"     {candidate['configuration']}")
    print(f"log, best.onnx and recipe.yaml are in {arguments.output_dir}")


if __name__ == "__main__":
    main()
