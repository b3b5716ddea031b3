"""Automatic search in its four forms, on the embedded detector or a model of your own.

python auto_search.py plain       # calibration methods, types, equalization
python auto_search.py two-stage   # calibration first, then finetuning of the best
python auto_search.py advanced    # iterations and learning rate of finetuning as numbers, one study that learns
python auto_search.py joint       # pairs of iterations and learning rate (NumIterLR)
"""

import argparse
from typing import Any

from quantry import demo
from quantry.onnx import CalibrationMethod, Config, PowerOfTwoMethod, QuantType, get_default_config
from quantry.onnx.auto_search import AutoSearch, AutoSearchConfig

CALIBRATION: dict[str, Any] = {
    "calibrate_method": [CalibrationMethod.MinMax, CalibrationMethod.Percentile, PowerOfTwoMethod.MinMSE],
    "activation_type": [QuantType.QInt8],
    "weight_type": [QuantType.QInt8],
    "include_cle": [True, False],
    "include_fast_ft": [False],
    "extra_options": {"ActivationSymmetric": [True, False], "Percentile": [99.99, 99.999]},
}


def finetuning(iterations: int, samples: int) -> dict[str, Any]:
    """Settings that finetuning has in every form."""
    return {"DataSize": [samples], "NumIterations": [iterations], "OptimAlgorithm": ["adaround"], "LearningRate": [0.1]}


def plain(arguments: argparse.Namespace) -> type[AutoSearchConfig]:
    """One space; whatever is invalid or repeated in it is not tried."""
    del arguments

    class Plain(AutoSearchConfig):
        search_space = CALIBRATION
        search_metric = "cos"
        search_metric_tolerance = 0.05

    return Plain


def two_stage(arguments: argparse.Namespace) -> type[AutoSearchConfig]:
    """Calibration and finetuning one after the other instead of every pair of both."""
    options = {
        **CALIBRATION["extra_options"],
        "FastFinetune": finetuning(arguments.iterations, arguments.samples) | {"LearningRate": [0.1, 0.01]},
    }

    class TwoStage(AutoSearchConfig):
        search_space = {  # noqa: RUF012
            **CALIBRATION,
            "include_cle": [False],
            "include_fast_ft": [False, True],
            "extra_options": options,
        }
        two_stage_search = True

    return TwoStage


def advanced(arguments: argparse.Namespace) -> type[AutoSearchConfig]:
    """Lists are bounds of ranges; the quantization configuration has include_fast_ft=True."""
    bounds = [max(arguments.iterations // 2, 1), arguments.iterations]

    class Advanced(AutoSearchConfig):
        advanced_fastft_search = True
        n_jobs = 1
        search_devices = "cpu"
        advanced_fastft_params = {"sampler_algo": "TPE", "n_trials": arguments.trials}  # noqa: RUF012
        search_space = {  # noqa: RUF012
            "extra_options": {"FastFinetune": {"NumIterations": bounds, "LearningRate": [1e-3, 1e-1]}}
        }

    return Advanced


def joint(arguments: argparse.Namespace) -> type[AutoSearchConfig]:
    """Pairs that go well together instead of every combination."""
    pairs = [[arguments.iterations, 0.1], [2 * arguments.iterations, 0.05]]

    class Joint(AutoSearchConfig):
        search_space = {  # noqa: RUF012
            "include_fast_ft": [True],
            "extra_options": {"FastFinetune": {"DataSize": [arguments.samples], "NumIterLR": pairs}},
        }

    return Joint


FORMS = {"plain": plain, "two-stage": two_stage, "advanced": advanced, "joint": joint}


def main() -> None:
    """Search, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("--model", help="float ONNX model; default: the embedded detector")
    parser.add_argument("--data", help="folder of images, .npy or .npz files to calibrate on")
    parser.add_argument("--samples", type=int, default=8, help="samples of the embedded detector")
    parser.add_argument("--iterations", type=int, default=100, help="of finetuning, for each layer")
    parser.add_argument("--trials", type=int, default=4, help="largest number of trials")
    parser.add_argument("--output_dir", default="auto_search_out")
    arguments = parser.parse_args()

    kind = FORMS[arguments.form](arguments)
    search_config = kind()
    search_config.search_output_dir = f"{arguments.output_dir}/{arguments.form}"
    if not (kind.two_stage_search or kind.advanced_fastft_search):
        search_config.search_stop_condition = {"iteration_limit": arguments.trials}
    quantization_config = get_default_config("S8S8_AAWS")
    quantization_config.include_fast_ft = kind.advanced_fastft_search
    if kind.advanced_fastft_search:
        quantization_config.extra_options = {
            **(quantization_config.extra_options or {}),
            "FastFinetune": {"DataSize": arguments.samples, "OptimAlgorithm": "adaround"},
        }
    model = arguments.model or str(demo.model_path())
    reader = arguments.data or demo.calibration_inputs(arguments.samples)
    search = AutoSearch(Config(quantization_config), search_config, model, reader)
    for candidate in search.search_model():
        print(f"difference {candidate['difference']:.6g}  {candidate['model_path']}")
        print(f"  {candidate['configuration']}")
        print(f"  computed {list(candidate['timings']['computed'])}, reused {candidate['timings']['reused']}")


if __name__ == "__main__":
    main()
