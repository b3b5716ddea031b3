"""Values: what the user asks for, one frozen dataclass for each stage's options, and presets as data."""

from quantry.recipe.codec import (
    decode,
    encode,
    from_json,
    from_plain,
    from_yaml,
    load_recipe,
    save_recipe,
    to_json,
    to_plain,
    to_yaml,
)
from quantry.recipe.data_type import DataType
from quantry.recipe.granularity import Granularity, PerChannel, PerTensor
from quantry.recipe.methods import Entropy, LayerWisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile
from quantry.recipe.options import (
    Bias,
    DerivedBias,
    EmitOptions,
    EvaluateOptions,
    FloatBias,
    Format,
    ObserveOptions,
    OwnBias,
    PlanOptions,
    PrepareOptions,
    Qdq,
    ScaleOptions,
)
from quantry.recipe.presets import PRESETS, Preset, find_preset
from quantry.recipe.recipe import Difference, Recipe
from quantry.recipe.scale_kind import FloatScale, PowerOfTwoScale, ScaleKind
from quantry.recipe.selection import Selection, Subgraph
from quantry.recipe.tensor_spec import TensorSpec

__all__ = [
    "PRESETS",
    "Bias",
    "DataType",
    "DerivedBias",
    "Difference",
    "EmitOptions",
    "Entropy",
    "EvaluateOptions",
    "FloatBias",
    "FloatScale",
    "Format",
    "Granularity",
    "LayerWisePercentile",
    "Method",
    "MinMSE",
    "MinMax",
    "NonOverflow",
    "ObserveOptions",
    "OwnBias",
    "PerChannel",
    "PerTensor",
    "Percentile",
    "PlanOptions",
    "PowerOfTwoScale",
    "PrepareOptions",
    "Preset",
    "Qdq",
    "Recipe",
    "ScaleKind",
    "ScaleOptions",
    "Selection",
    "Subgraph",
    "TensorSpec",
    "decode",
    "encode",
    "find_preset",
    "from_json",
    "from_plain",
    "from_yaml",
    "load_recipe",
    "save_recipe",
    "to_json",
    "to_plain",
    "to_yaml",
]
