"""One trial whose result depends on the compiled kernels.

Run as a program, it prints the digest of the model without a store and with one: ``python tuned_trial.py STORE``.
"""

import hashlib
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from quantry import quantize
from quantry.recipe import PRESETS, AdaRound, TuneOptions

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
tuned (float[1,8,12,12] x) => (float[1,16,8,8] y) {
    c = Conv(x, w)
    r = Relu(c)
    y = Conv(r, v)
}
"""


def model_digest(store: str | None) -> str:
    """Quantize and tune a model and return the digest of its bytes.

    The layers are large enough that AdaRound with compiled kernels and with NumPy rounds some weights differently.
    """
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(_MODEL)
    for name, shape in (("w", (32, 8, 3, 3)), ("v", (16, 32, 3, 3))):
        weight = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    data = [rng.standard_normal((1, 8, 12, 12)).astype(np.float32) for _ in range(16)]
    recipe = replace(PRESETS["S8S8_AAWS"].recipe, tune=TuneOptions((AdaRound(iterations=300),)))
    return hashlib.sha256(quantize(model, data, recipe, store=store).to_bytes()).hexdigest()


if __name__ == "__main__":
    sys.stdout.write(f"{model_digest(None)} {model_digest(sys.argv[1])}")
