"""Cases of document 004: YOLO-X with quantization-aware training."""

from seed_case import Case, Repair

REPAIRS: tuple[Repair, ...] = ()

CASES: dict[int, Case] = {}

PENDING: dict[int, str] = {
    1: "quantry.torch configuration",
    2: "capture of torch models",
    3: "quantization of torch models",
    4: "training",
    5: "evaluation",
    6: "export of torch models",
    7: "examples/yolox",
}
