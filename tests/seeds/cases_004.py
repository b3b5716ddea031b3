"""Cases of document 004: YOLO-X with quantization-aware training."""

import importlib.util
import itertools
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import onnx
import torch
from seed_case import Case, Repair, Seed
from torch import Tensor, nn

import quantry.torch as facade

EXAMPLE = Path(__file__).parents[2] / "examples" / "yolox"

REPAIRS: tuple[Repair, ...] = (
    Repair(3, "self.", "trainer.", "cut out of a method of the trainer"),
    Repair(6, "self.", "trainer.", "cut out of a method of the trainer"),
    Repair(6, "./***/quark_model.onnx", "./export/quark_model.onnx", "the document does not name the directory"),
)


class BaseModel(nn.Module):
    """A tiny detector body."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 4, 3, stride=8, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.silu(self.norm(self.stem(x))))


class Model(nn.Module):
    """The model around the body; its decoding stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model = BaseModel()

    def forward(self, x: Tensor) -> Tensor:
        return self.base_model(x).flatten(2).sigmoid()


NAMES = {name: getattr(facade, name) for name in facade.__all__}


def configuration(seed: Seed) -> facade.QuantizationConfig:
    text = (Path(__file__).parent / "blocks" / "004_01.python").read_text()
    space = dict(NAMES)
    exec(compile(text, "004_01", "exec"), space)
    return space["quant_config"]


def images() -> list[tuple[Tensor, int]]:
    torch.manual_seed(1)
    return [(torch.rand(2, 3, 416, 416) * 4 - 2, 0) for _ in range(2)]


def quantized(seed: Seed) -> tuple[Model, Any]:
    model = Model().eval()
    config = facade.Config(global_quant_config=configuration(seed), quant_mode=facade.QuantizationMode.fx_graph_mode)
    quantizer = facade.ModelQuantizer(config)
    model.base_model = quantizer.quantize_model(model.base_model, [batch[0] for batch in images()[:1]])
    return model, quantizer


def the_configuration_is_power_of_two_int8(seed: Seed) -> None:
    config = seed.run(**NAMES)["quant_config"]
    assert config.weight.tensor_spec() == config.input_tensors.tensor_spec()
    assert type(config.weight.tensor_spec().scale).__name__ == "PowerOfTwoScale"


def the_body_is_captured(seed: Seed) -> None:
    model = Model().eval()
    expected = model(images()[0][0])
    exp = types.SimpleNamespace(get_model=lambda: model)
    space = seed.run(torch=torch, exp=exp)
    assert isinstance(space["model"].base_model, torch.fx.GraphModule)
    torch.testing.assert_close(space["model"](images()[0][0]), expected)


def one_batch_calibrates(seed: Seed) -> None:
    graph = facade.capture(Model().eval().base_model, torch.randn(1, 3, 416, 416))
    this = types.SimpleNamespace(evaluator=types.SimpleNamespace(dataloader=images()))
    space = seed.run(**NAMES, itertools=itertools, trainer=this, graph_model=graph, quant_config=configuration(seed))
    assert isinstance(space["quantized_model"], facade.QuantizedModule)


def a_loop_of_the_users_own_trains(seed: Seed) -> None:
    model, _ = quantized(seed)
    losses: list[float] = []

    def train_in_iter(module: Any, loader: Any, _: Any, optimizer: Any) -> None:
        module.train()
        for batch, _ in loader:
            optimizer.zero_grad()
            loss = module(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))

    seed.run(
        quantized_model=model.base_model,
        batch_size=2,
        basic_lr_per_img=0.01,
        max_iter=4,
        start_epoch=0,
        max_epoch=2,
        get_data_loader=lambda _: images(),
        get_lr_scheduler=lambda *_: None,
        get_optimizer=lambda _: torch.optim.SGD(model.base_model.parameters(), 0.1),
        train_in_iter=train_in_iter,
    )
    assert losses[-1] < losses[0]


def the_evaluator_sees_an_ordinary_model(seed: Seed) -> None:
    model, _ = quantized(seed)

    class Evaluator:
        def evaluate(self, candidate: nn.Module) -> tuple[float, float, str]:
            shape = candidate(images()[0][0]).shape
            return 0.0, 0.0, f"Average Precision of {tuple(shape)}"

    space = seed.run(evaluator=Evaluator(), trainer=types.SimpleNamespace(model=model))
    assert space["summary"] == "Average Precision of (2, 6, 2704)"


def the_model_is_exported_and_simplified(seed: Seed) -> None:
    model, quantizer = quantized(seed)
    if importlib.util.find_spec("onnxsim") is None:
        # Simplifying changes nothing that is clean already; where the package is missing, this stands for it.
        stand_in = types.ModuleType("onnxsim")
        stand_in.simplify = lambda given: (onnx.shape_inference.infer_shapes(given, strict_mode=True), True)
        sys.modules["onnxsim"] = stand_in
    this = types.SimpleNamespace(model=model, quantizer=quantizer, file_name="./export", device="cpu")
    try:
        seed.run(**NAMES, torch=torch, onnx=onnx, trainer=this)
    finally:
        if not hasattr(sys.modules["onnxsim"], "__file__"):
            del sys.modules["onnxsim"]
    written = onnx.load(seed.folder / "sample_quark_model.onnx")
    onnx.checker.check_model(written, full_check=True)
    operators = {node.op_type for node in written.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= operators
    assert not operators & {"Identity", "Cast", "Constant", "Shape", "BatchNormalization"}


def the_command_line_explains_itself(seed: Seed) -> None:
    (command,) = seed.commands()
    assert command[1] == "PTQ_QAT_exp.py"
    options = [word.split("=")[0] for word in command[2:]]
    shown = subprocess.run(
        [sys.executable, EXAMPLE / command[1], "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(option in shown for option in options)


CASES: dict[int, Case] = {
    1: the_configuration_is_power_of_two_int8,
    2: the_body_is_captured,
    3: one_batch_calibrates,
    4: a_loop_of_the_users_own_trains,
    5: the_evaluator_sees_an_ordinary_model,
    6: the_model_is_exported_and_simplified,
    7: the_command_line_explains_itself,
}

PENDING: dict[int, str] = {}
