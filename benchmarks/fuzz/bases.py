"""Small valid models to mutate: many operators, operator sets, subgraphs, functions and ways to store weights."""

import numpy as np
import onnx
from onnx import numpy_helper

_TEXTS = {
    "cnn": """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,3,8,8] x) => (float[N,5] y) <float[8,3,3,3] w1, float[8] b1, float[8] s, float[8] o, float[8] m,
        float[8] v = {1, 1, 1, 1, 1, 1, 1, 1}, float[8,1,3,3] w2, float[8,5] w3> {
          a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
          n = BatchNormalization (a, s, o, m, v)
          r = Relu (n)
          d = Conv <group = 8, pads = [1, 1, 1, 1]> (r, w2)
          e = Add (r, d)
          p = GlobalAveragePool (e)
          f = Flatten (p)
          y = Gemm (f, w3)
        }""",
    "old_cnn": """<ir_version: 4, opset_import: ["": 9]>
        g (float[1,3,8,8] x) => (float[1,4,8,8] y) <float[4,3,3,3] w, float[4] sc = {1, 1, 2, 2}> {
          a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
          c = Clip <min = 0.0, max = 6.0> (a)
          p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
          u = Upsample <mode = "nearest"> (p, sc)
          q = Dropout (u)
          y = Softmax <axis = 1> (q)
        }""",
    "attention": """<ir_version: 9, opset_import: ["": 20]>
        g (float[b,4,8] x) => (float[b,32] y) <float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8] s, float[8] o> {
          q = MatMul (x, wq)
          k = MatMul (x, wk)
          v = MatMul (x, wv)
          t = Transpose <perm = [0, 2, 1]> (k)
          z = MatMul (q, t)
          p = Softmax <axis = -1> (z)
          c = MatMul (p, v)
          l = LayerNormalization <axis = -1> (c, s, o)
          e = Gelu (l)
          h = Shape <start = 0, end = 1> (x)
          w = Constant <value_ints = [-1]> ()
          i = Concat <axis = 0> (h, w)
          y = Reshape (e, i)
        }""",
    "branch": """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,8] x) => (float[1,8] y) <float[8,8] w, float z = {0}> {
          s = ReduceSum <keepdims = 0> (x)
          c = Greater (s, z)
          i = If (c) <then_branch = t () => (float[1,8] ty) { ty = MatMul (x, w) },
                      else_branch = e () => (float[1,8] ey) { en = MatMul (x, w) ey = Relu (en) }>
          y = Gemm (i, w)
        }""",
    "loop": """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,8] x) => (float[1,8] y, float[3,1,8] all) <float[8,8] w, int64 n = {3}, bool t = {1}> {
          l, all = Loop (n, t, x) <body = b (int64 i, bool ci, float[1,8] vi) => (bool co, float[1,8] vo, float[1,8] so)
            { co = Identity (ci) vo = MatMul (vi, w) so = Tanh (vo) }>
          y = Gemm (l, w)
        }""",
    "scan": """<ir_version: 8, opset_import: ["": 17]>
        g (float[5,4] x, float[4] h) => (float[4] last, float[5,4] all) <float[4,4] w> {
          last, all = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] e) => (float[4] n, float[4] o)
            { m = MatMul (s, w) n = Add (m, e) o = Sigmoid (n) }> (h, x)
        }""",
    "functions": """<ir_version: 8, opset_import: ["": 17, "my": 1]>
        g (float[1,8] x) => (float[1,8] y) <float[8,8] w> {
          a = my.Outer <slope = 0.2> (x, w)
          y = Gemm (a, w)
        }
        <opset_import: ["": 17], domain: "my"> Inner <slope> (a, b) => (c)
          { m = MatMul (a, b) c = LeakyRelu <alpha: float = @slope> (m) }
        <opset_import: ["": 17, "my": 1], domain: "my"> Outer <slope> (a, b) => (c)
          { t = my.Inner <slope: float = @slope> (a, b) c = my.Inner <slope: float = @slope> (t, b) }""",
    "lstm": """<ir_version: 8, opset_import: ["": 14]>
        g (float[3,1,8] x) => (float[1,4] y) <float[1,16,8] W, float[1,16,4] R, float[4,4] w, int64[1] a = {0}> {
          o, h = LSTM <hidden_size = 4> (x, W, R)
          s = Squeeze (h, a)
          y = Gemm (s, w)
        }""",
    "gru": """<ir_version: 8, opset_import: ["": 14]>
        g (float[3,1,8] x) => (float[3,1,1,4] y) <float[1,12,8] W, float[1,12,4] R, float[1,24] B> {
          y = GRU <hidden_size = 4, linear_before_reset = 1> (x, W, R, B)
        }""",
    "resize": """<ir_version: 8, opset_import: ["": 18]>
        g (float[1,3,8,8] x) => (float[1,6,8,8] y) <float[4,3,3,3] w, float[4] sc = {1, 1, 2, 2}, int64[1] st = {0},
        int64[1] en = {6}, int64[1] ax = {1}, float lo = {0}, float hi = {6}> {
          a = Conv <pads = [1, 1, 1, 1]> (x, w)
          b = Sigmoid (a)
          c = Mul (a, b)
          d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
          e = Resize <mode = "nearest"> (d, , sc)
          f = Concat <axis = 1> (c, e)
          h = Slice (f, st, en, ax)
          y = Clip (h, lo, hi)
        }""",
    "transposed": """<ir_version: 8, opset_import: ["": 13]>
        g (float[1,3,4,4] x) => (float[1,2,7,7] y) <float[3,4,2,2] w, float[4] s, float[4] o, int64[2] n = {2, 2}> {
          a = ConvTranspose <strides = [2, 2]> (x, w)
          i = InstanceNormalization (a, s, o)
          l = LeakyRelu (i)
          p = AveragePool <kernel_shape = [2, 2]> (l)
          u, v = Split <axis = 1> (p, n)
          y = Sub (u, v)
        }""",
    "indices": """<ir_version: 8, opset_import: ["": 17]>
        g (int64[1,4] ids, float[1,4,8] x) => (float[1,2,8] top, int64[1,2,8] at) <float[16,8] table, int64[1] k = {2},
        int64[1] ax = {2}> {
          e = Gather (table, ids)
          a = Add (e, x)
          m = ReduceMean <axes = [2]> (a)
          d = Sub (a, m)
          q = Pow (d, d)
          s = CumSum (a, k0)
          z = Einsum <equation = "bij,bkj->bik"> (s, d)
          f = MatMul (z, a)
          top, at = TopK <axis = 1> (f, k)
          k0 = Constant <value_int = 1> ()
        }""",
    "sequence": """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,8] x) => (float[2,4] y) <float[4,4] w> {
          s = SplitToSequence <axis = 1> (x, n)
          i = Constant <value_int = 1> ()
          a = SequenceAt (s, i)
          y = MatMul (a, w)
          n = Constant <value_int = 4> ()
        }""",
    "contrib": """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[1,4,8] x) => (float[1,4,8] y) <float[8,8] w, float[8] s> {
          n = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (x, s)
          a = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (n, w)
          b = com.microsoft.FastGelu (a)
          y, u, v, t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001> (b, x, s)
        }""",
    "half": """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,8] x) => (float[1,4] y) <float[8,4] w> {
          c = Cast <to = 10> (x)
          d = Cast <to = 1> (c)
          m = MatMul (d, w)
          k = IsNaN (m)
          z = Constant <value_float = 0.0> ()
          y = Where (k, z, m)
        }""",
}


def base_models() -> dict[str, onnx.ModelProto]:
    """Return the models by name; weights without values in the text get fixed random ones."""
    return {name: _model(text) for name, text in _TEXTS.items()}


def _model(text: str) -> onnx.ModelProto:
    # The parser takes a weight that is declared without values for the description of a tensor.
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    for declared in model.graph.value_info:
        shape = tuple(dim.dim_value for dim in declared.type.tensor_type.shape.dim)
        array = generator.normal(size=shape).astype(np.float32) * np.float32(0.3)
        model.graph.initializer.append(numpy_helper.from_array(array, declared.name))
    del model.graph.value_info[:]
    return model
