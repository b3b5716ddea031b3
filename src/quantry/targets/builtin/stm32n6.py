"""STMicroelectronics STM32N6: the Neural-ART accelerator through ST Edge AI."""

from quantry.recipe import DataType
from quantry.targets.rules import Centred, Granularity, NoOverflow, StaticFormats, StaticShapes, Types
from quantry.targets.target import Target

_ST = "ST Edge AI documentation, operator support of Neural-ART"
_CORE = "the node runs in float on the Cortex-M core"

STM32N6 = Target(
    name="stm32n6",
    summary="ST Neural-ART (STM32N6): int8 or uint8 activations, symmetric int8 weights per channel",
    recommended=("RECOMMENDED-CPU",),
    rules=(
        StaticShapes(source=_ST, consequence="the compiler rejects the model"),
        StaticFormats(source=_ST, consequence=_CORE),
        Types(
            activation=(DataType.INT8, DataType.UINT8),
            weight=(DataType.INT8,),
            bias=(DataType.INT32, DataType.INT8),
            source=_ST,
            consequence=_CORE,
        ),
        Centred(roles=("weight", "bias"), source=_ST, consequence=_CORE),
        Granularity(weights_per_channel=True, source=_ST, consequence=_CORE),
        NoOverflow(source=_ST, consequence="sums wrap around silently"),
    ),
    float_elsewhere=True,
)
