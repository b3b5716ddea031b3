"""Cases of document 003: the tutorial of vai_q_onnx."""

from seed_case import Case, Repair

REPAIRS: tuple[Repair, ...] = ()

CASES: dict[int, Case] = {}

PENDING: dict[int, str] = {
    1: "build",
    2: "install",
    3: "install",
    4: "quantize_static",
    5: "examples/resnet50_ptq",
    6: "examples/resnet50_ptq",
    7: "quant_pre_process",
    8: "quantize_static",
}
