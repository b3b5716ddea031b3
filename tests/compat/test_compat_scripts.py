"""Scripts for AMD's packages: missing names are reported before a script starts, and scripts run unchanged."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from compat_models import saved_model

from quantry.cli.compat import compat
from quantry.compat import mapped_imports, run_script, scan_script
from quantry.errors import RecipeError

MAIN = [sys.executable, "-c", "from quantry.cli.app import main; main()"]

# Import lines and call shapes of public scripts for AMD Quark and vai_q_onnx.
IMPORTS = """
from quark.onnx import ModelQuantizer, PowerOfTwoMethod, QuantType, QuantFormat, QConfig, XINT8_QCONFIG
from quark.onnx import Config, ExtendedQuantFormat, ExtendedQuantType, LayerWiseMethod, QuantizationConfig
from quark.onnx import A8W8_QCONFIG, A16W8_QCONFIG, CalibrationDataReader
from quark.onnx import BFloat16Spec, BFP16Spec, CalibMethod, CLEConfig, Int8Spec, QLayerConfig, XInt8Spec
from quark.onnx.calibration import CachedDataReader, LayerWiseMethod, PowerOfTwoMethod
from quark.onnx.calibration.methods import ExtendedCalibrationMethod, Int16Method
from quark.onnx.operators.custom_ops import get_library_path
from quark.onnx.quant_utils import ExtendedQuantFormat, ExtendedQuantType, PowerOfTwoMethod
from quark.onnx.quantization.api import ModelQuantizer
from quark.onnx.quantization.config import (Config, get_default_config)
from quark.onnx.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig, AutoMixprecisionConfig, CLEConfig
from quark.onnx.quantization.config.config import Config, QConfig, QuantizationConfig
from quark.onnx.quantization.config.custom_config import A8W8_QCONFIG, INT8_TRANSFORMER_DEFAULT_CONFIG, U8S8_AAWS_CONFIG
from quark.onnx.quantization.config.custom_config import DEFAULT_ADAQUANT_PARAMS, DEFAULT_ADAROUND_PARAMS
from quark.onnx.quantization.config.data_type import BFP16, BFloat16, Int8, Int16, Int32, UInt8, UInt16, UInt32
from quark.onnx.quantization.config.spec import CalibMethod, Int8Spec, Int16Spec, QLayerConfig, XInt8Spec
from quark.onnx.quantization import QConfig
from quark.onnx import auto_search
from quark.onnx.quantization import auto_search
from quark.onnx.auto_search import AutoSearch, AutoSearchConfig
from quark.onnx import AutoSearch, AutoSearchPro, SearchSpace, generate_all_configs, get_auto_search_config
from quark.shares.utils.log import ScreenLogger
from quark.torch import ModelExporter, ModelQuantizer, export_onnx
from quark.torch.export import ExporterConfig, JsonExporterConfig
from quark.torch.export.config.config import ExporterConfig, JsonExporterConfig
from quark.torch.quantization.config.config import Config, QuantizationConfig, QuantizationSpec
from quark.torch.quantization.config.config import QConfig, QLayerConfig, QTensorConfig
from quark.torch.quantization.config.type import Dtype, QSchemeType, QuantizationMode, RoundType, ScaleType
from quark.torch.quantization.observer.observer import PerTensorMinMaxObserver, PerTensorPowOf2MinMSEObserver
from quark.torch.quantization.config.config import LSQSpec, TQTSpec
from quark.torch.quantization.config.type import TQTThresholdInitMeth
from quark.torch.quantization.graph.torch_utils import _active_bn, _enable_fake_quant, _enable_observer
from quark.torch.quantization.observer.lsq_observer import LSQObserver
from quark.torch.quantization.observer.tqt_observer import TQTObserver
from quark.torch.export.api import load_params, save_params
from quark.common.utils.import_utils import export_for_training
from quark.common.utils.log import ScreenLogger, log_errors
from quark.onnx import CalibraterBase, MinMaxCalibrater, QuantizationMode, write_calibration_table
from quark.onnx.calibration import get_data_reader
from quark.onnx.operators.custom_ops import _COP_DOMAIN, _COP_VERSION
from quark.onnx.quantization.auto_search.auto_search_v1 import METRICS, cos_metric, l1_metric, l2_metric, psnr_metric
from quark.onnx.quantization.auto_search.config_generator import generate_all_configs
from quark.onnx.quantization.auto_search.qconfig_mapping import AUTO_SEARCH_CONFIGS, get_auto_search_config
from quark.onnx.quantization.config.config import CLEConfig, Int8Spec, QLayerConfig
from quark.onnx.quantization.config.custom_config import AdaRoundConfig, ExtendedQuantFormat, XInt8Spec
from quark.onnx.quantization.config.spec import BFP16, Int8, MXInt8, parse_data_type
from quark.onnx.quantization.output_eval import calculate_cos, calculate_l1_distance, calculate_ssim, eval_metrics
from quark.onnx.quantization.quant_utils import create_infer_session_for_onnx_model
from quark.onnx.utils.model_utils import register_custom_ops_library
from quark.torch.quantization.graph.ops.quant_stubs import DeQuantStub, QuantStub
from quark.torch.quantization.graph.torch_utils import allow_exported_model_train_eval
import quark.torch
from vai_q_onnx import PowerOfTwoMethod, VitisQuantFormat, quantize_static
from vai_q_onnx.quantize import quantize_static
from quark.onnx import DataType, MX9, MXFP8E4M3, parse_data_type
from quark.onnx.calibration.data_readers import CachedDataReader, RandomDataReader
from quark.onnx.quantization import AdaRoundConfig, CLEConfig, SmoothQuantConfig
from quark.onnx.quantization.auto_search import generate_all_configs, get_auto_search_config
from quark.onnx.quantization.config import DefaultConfigMapping, get_default_config_mapping
from quark.onnx.quantization.config.custom_config import DefaultConfigMapping
from quark.onnx.quantization.config.data_type import MX4, MXInt8, parse_data_type
from quark.onnx.quantization.config.legacy import QuantizationConfig
from quark.onnx.tools import convert_fp16_to_fp32, evaluate, random_quantize
from quark.onnx.tools.convert_nchw_to_nhwc import convert_nchw_to_nhwc
from quark.onnx.tools.remove_qdq import remove_qdq
from quark.onnx.utils.deploy_utils import dump_model
from vai_q_onnx.quant_utils import PowerOfTwoMethod, VitisQuantFormat
from vai_q_onnx.tools.convert_qdq_to_qop import convert_qdq_to_qop
import quark.onnx.quantization.config as config
import quark.onnx as qk
import quark.onnx
import vai_q_onnx
"""

SPEC_SCRIPT = """
import argparse
import numpy as np
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import AdaRoundConfig, CalibMethod, CLEConfig, Int8Spec, ModelQuantizer, QConfig, QLayerConfig
from quark.shares.utils.log import ScreenLogger

logger = ScreenLogger(__name__)


class Reader(CalibrationDataReader):
    def __init__(self):
        self.rest = iter([{"image": np.ones((2, 3, 8, 8), np.float32) * n} for n in range(3)])

    def get_next(self):
        return next(self.rest, None)


def main(args):
    activation, weight = Int8Spec(), Int8Spec()
    activation.set_symmetric(False)
    activation.set_calibration_method(CalibMethod.MinMax)
    config = QConfig(
        global_config=QLayerConfig(activation=activation, weight=weight),
        algo_config=[CLEConfig(cle_steps=2)],
        exclude=args.exclude or [],
        Percentile=99.9999,
        Int32Bias=True,
    )
    ModelQuantizer(config).quantize_model(args.input_model_path, args.output_model_path, Reader())
    logger.info("done")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--input_model_path")
    parser.add_argument("--output_model_path")
    parser.add_argument("--exclude", nargs="*")
    main(parser.parse_args())
"""

VAI_SCRIPT = """
import sys
from onnxruntime.quantization import QuantFormat, QuantType
import vai_q_onnx
import onnxruntime
from quark.onnx.operators.custom_ops import get_library_path

vai_q_onnx.quantize_static(
    sys.argv[1],
    sys.argv[2],
    calibration_data_reader=None,
    quant_format=QuantFormat.QDQ,
    calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    enable_ipu_cnn=True,
    extra_options={"ActivationSymmetric": True},
)
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(get_library_path("CPU"))
session = onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
print("outputs", [output.name for output in session.get_outputs()])
"""

FAULTS = """
import vai_q_onnx
import quark.onnx.tools.convert_fp16_to_fp31
from quark.onnx import ModelQuantizer, QuantizeConfig
from quark.onnx.quantization.config import get_default_config
from quark.contrib.llm_eval import ppl_eval
from local_module import helper

config = get_default_config("XINT9")
method = vai_q_onnx.PowerOfTwoMethod.MinMES
vai_q_onnx.quantize_static("a", "b", None, enable_npu_cn=True, extra_options={
    "ActivationSymetric": True, "DedicateDQNode": True, "FastFinetune": {"LearnRate": 1}})
try:
    from quark.onnx import nothing_of_the_kind
except ImportError:
    pass
"""


def write(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("line", [line for line in IMPORTS.splitlines() if line])
def test_import_line_of_public_scripts_works(line: str, tmp_path: Path) -> None:
    if "torch" in line:
        pytest.importorskip("torch")
    assert scan_script(write(tmp_path, line)) == ()
    with mapped_imports():
        exec(line, {})


def test_functions_of_our_package_are_not_replaced() -> None:
    pytest.importorskip("torch")
    import quantry.torch

    before = dict(vars(quantry.torch))
    with mapped_imports():
        exec("from quark.torch.export import ModelExporter\nimport quark.torch.quantization.config.type", {})
    assert vars(quantry.torch) == before


def test_missing_names_are_reported_with_line_and_nearest_spelling(tmp_path: Path) -> None:
    write(tmp_path, "from quark.onnx import Missing1\ndef helper(): ...\n", "local_module.py")
    found = [str(entry).removeprefix(f"{tmp_path}/") for entry in scan_script(write(tmp_path, FAULTS))]
    wanted = (
        "local_module.py:1: quark.onnx.Missing1 does not exist",
        "script.py:3: quark.onnx.tools.convert_fp16_to_fp31 is a module that quantry does not have",
        "script.py:4: quark.onnx.QuantizeConfig does not exist; did you mean 'QuantizationConfig'?",
        "script.py:6: quark.contrib.llm_eval is a module that quantry does not have",
        "script.py:9: get_default_config('XINT9') does not exist: get_default_config must",
        "script.py:10: vai_q_onnx.PowerOfTwoMethod.MinMES does not exist; did you mean 'MinMSE'?",
        "script.py:11: vai_q_onnx.quantize_static(enable_npu_cn=...) does not exist; did you mean 'enable_npu_cnn'?",
        "script.py:11: extra_options['ActivationSymetric'] does not exist; did you mean 'ActivationSymmetric'?",
        "script.py:11: extra_options['DedicateDQNode'] = True is not supported: ",
        "script.py:11: extra_options['FastFinetune']['LearnRate'] does not exist; did you mean 'LearningRate'?",
    )
    assert len(found) == len(wanted)
    for line, start in zip(sorted(found), sorted(wanted), strict=True):
        assert line.startswith(start)


def test_script_by_layers_runs_with_its_own_arguments(tmp_path: Path) -> None:
    model, output = saved_model(tmp_path), tmp_path / "out" / "q.onnx"
    script = write(tmp_path, SPEC_SCRIPT)
    assert scan_script(script) == ()
    run_script(script, ["--input_model_path", str(model), "--output_model_path", str(output), "--exclude", "fc"])
    quantized = onnx.load(output)
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in quantized.graph.node}
    assert not any(entry.name.startswith("w2") and "quantized" in entry.name for entry in quantized.graph.initializer)
    sample = {"image": np.ones((2, 3, 8, 8), np.float32)}
    onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"]).run(None, sample)


def test_command_runs_a_script_that_registers_a_library(tmp_path: Path) -> None:
    model = saved_model(tmp_path)
    script = write(tmp_path, VAI_SCRIPT)
    done = subprocess.run(
        [*MAIN, "compat", str(script), str(model), str(tmp_path / "q.onnx")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "outputs ['scores']" in done.stdout
    assert "random" in done.stderr


def test_command_does_not_start_a_script_with_missing_names(tmp_path: Path) -> None:
    script = write(tmp_path, "print('started')\nfrom quark.onnx import Nothing\n")
    for options, code in ((("--scan",), 2), ((), 2)):
        done = subprocess.run(
            [*MAIN, "compat", *options, str(script)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code
        assert "quark.onnx.Nothing" in done.stderr.replace("\n", "")
        assert "started" not in done.stdout


def test_script_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="SCRIPT must be a readable file"):
        scan_script(tmp_path / "none.py")
    with pytest.raises(RecipeError, match="SCRIPT must be valid Python"):
        scan_script(write(tmp_path, "def"))


def test_packages_of_amd_bring_the_quantizer_of_onnxruntime_along(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import onnxruntime\nimport vai_q_onnx\nprint(onnxruntime.quantization.CalibrationDataReader)\n")
    code = "from pathlib import Path; from quantry.compat import run_script; run_script(Path('script.py'))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_imports_are_restored() -> None:
    before = sys.meta_path[:], onnxruntime.SessionOptions, set(sys.modules)
    with mapped_imports():
        import quark.onnx

        assert quark.onnx.__name__ == "quantry.onnx"
        assert quark.onnx.__spec__.name == "quantry.onnx"
    assert (sys.meta_path[:], onnxruntime.SessionOptions) == before[:2]
    assert not {name for name in set(sys.modules) - before[2] if name.startswith(("quark", "vai_q_onnx"))}
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("quark.onnx")


def test_options_before_the_script_name_raise(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print('ran')", encoding="utf-8")
    with pytest.raises(RecipeError, match="must come before its own options, got --input_model_path"):
        compat(Path("--input_model_path"), ["x", str(tmp_path / "s.py")])


OBJECTS = """
import quark.onnx
import vai_q_onnx
from quark.onnx import Config, ModelQuantizer
from quark.onnx.quantization.config import get_default_config

quark.onnx.tools.nothing("model.onnx")
quark.onnx.tools.remove_qdq.remove_pairs("model.onnx")
vai_q_onnx.dump_model("model.onnx", random_data_reader_shape=[1])
options = {"ActivationSymetric": True}
config = get_default_config("XINT8")
config.include_cles = True
config.extra_options["FastFinetune"] = {}
quantizer = ModelQuantizer(Config(global_quant_config=config, debug=True))
quantizer.quantize_model("a.onnx", model_out="b.onnx")
quantizer.quantise_model("a.onnx")
vai_q_onnx.quantize_static("a", "b", None, extra_options=options)
"""


def test_scan_follows_modules_objects_and_dicts(tmp_path: Path) -> None:
    found = {str(entry).partition(": ")[2] for entry in scan_script(write(tmp_path, OBJECTS))}
    assert {text.partition(" does not exist")[0] for text in found} == {
        "quark.onnx.tools.nothing",
        "quark.onnx.tools.remove_qdq.remove_pairs",
        "vai_q_onnx.dump_model(random_data_reader_shape=...)",
        "QuantizationConfig.include_cles",
        "Config(debug=...)",
        "quantizer.quantize_model(model_out=...)",
        "ModelQuantizer.quantise_model",
        "extra_options['ActivationSymetric']",
    }


def test_names_that_are_bound_twice_are_not_guessed(tmp_path: Path) -> None:
    text = "from quark.onnx import ModelQuantizer\nq = ModelQuantizer(None)\ndef f(q):\n    q.anything()\n"
    assert scan_script(write(tmp_path, text)) == ()


def test_script_with_a_byte_order_mark_is_scanned_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "marked.py"
    path.write_bytes(b"\xef\xbb\xbffrom quark.onnx import QuantType\nprint(QuantType.QInt8.name)\n")
    assert scan_script(path) == ()
    run_script(path)
    assert capsys.readouterr().out == "QInt8\n"


def test_scan_follows_absolute_and_relative_imports_in_packages(tmp_path: Path) -> None:
    package = tmp_path / "helpers" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "helpers" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .near import one\n")
    (package / "near.py").write_text("from helpers.far import two\nfrom quark.onnx import NearName\n")
    (tmp_path / "helpers" / "far.py").write_text("from quark.onnx import FarName\n")
    script = write(tmp_path, "import helpers.deep\n")
    assert {entry.name for entry in scan_script(script)} == {"quark.onnx.NearName", "quark.onnx.FarName"}


def test_options_that_are_set_one_by_one_are_checked(tmp_path: Path) -> None:
    lines = [
        "from quark.onnx.quantization.config import get_default_config",
        "config = get_default_config('XINT8')",
        "config.extra_options['TmpDir'] = '.'",
        "config.extra_options['FastFinetune']['BatchSize'] = 2",
        "config.extra_options['DedicateDQNode'] = True",
        "config.extra_options['FastFinetune']['BatchSiz'] = 2",
        "config.extra_options['UseRandomDat'] = True",
    ]
    found = [(entry.line, entry.name) for entry in scan_script(write(tmp_path, "\n".join(lines)))]
    assert found == [
        (5, "extra_options['DedicateDQNode'] = True"),
        (6, "extra_options['FastFinetune']['BatchSiz']"),
        (7, "extra_options['UseRandomDat']"),
    ]
