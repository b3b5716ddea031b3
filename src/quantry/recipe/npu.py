"""What integer NPUs with power-of-two scales ask of a model: operator conversions and limits on positions.

The position of a tensor is ``-log2(scale)``, the number of fraction bits of its fixed-point numbers.
"""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked


@dataclass(frozen=True)
class NpuConversions(Checked):
    """Operators replaced by what the NPU computes in their place; AMD Quark's SimulateDPU.

    The first six change what the model computes, as the hardware does; the others only how it is written. In brackets
    is the name of the switch in AMD Quark.

    Attributes:
        leaky_relu: Round the slope of LeakyRelu to a multiple of 1/256 [ConvertLeakyReluToDPUVersion].
        sigmoid_to_hard_sigmoid: Replace Sigmoid by HardSigmoid(1/6, 0.5) [ConvertSigmoidToHardSigmoid].
        hard_sigmoid: Multiply the result of HardSigmoid(1/6, 0.5) by (2731/16384) / (1/6)
            [ConvertHardSigmoidToDPUVersion].
        average_pool: Multiply the result of AveragePool and GlobalAveragePool by the ratio between the NPU's
            fixed-point reciprocal of the kernel's size and the true one [ConvertAvgPoolToDPUVersion].
        reduce_mean: The same for ReduceMean over height and width [ConvertReduceMeanToDPUVersion].
        clip: Round the bounds of Clip to integers [ConvertClipToDPUVersion].
        reduce_mean_to_pool: Write ReduceMean over height and width as GlobalAveragePool
            [ConvertReduceMeanToGlobalAvgPool].
        split_large_pool: Write GlobalAveragePool over more than 512 values as AveragePool and GlobalAveragePool
            [SplitLargeKernelPool].
        split_to_slice: Write Split as one Slice for each output [ConvertSplitToSlice].
        batch_norm_to_conv: Write BatchNormalization that could not be folded as a depthwise 1x1 Conv [ConvertBNToConv].
    """

    leaky_relu: bool = True
    sigmoid_to_hard_sigmoid: bool = True
    hard_sigmoid: bool = True
    average_pool: bool = True
    reduce_mean: bool = True
    clip: bool = False
    reduce_mean_to_pool: bool = True
    split_large_pool: bool = True
    split_to_slice: bool = True
    batch_norm_to_conv: bool = True


@dataclass(frozen=True)
class NpuLimits(Checked):
    """Limits on the positions of neighbouring tensors that the NPU's shifters set; AMD Quark's NPULimitationCheck.

    Each rule moves positions until its limit holds; all enabled rules run in the order of the fields, and again until
    nothing changes. In brackets is the name of the switch in AMD Quark.

    Attributes:
        align_concat: Inputs and output of Concat have one position [AlignConcat].
        align_pool: Input and output of MaxPool, AveragePool and GlobalAveragePool have one position [AlignPool].
        align_pad: Input and output of Pad have one position [AlignPad].
        align_slice: Input and output of Slice have one position [AlignSlice].
        shift_read: Operands of Add and Sub are at most 7 positions apart [AdjustShiftRead].
        shift_write: The result of Add and Mul is within reach of the output shifter [AdjustShiftWrite].
        shift_cut: The accumulator of Conv and Gemm is cut by 0 to 16 bits [AdjustShiftCut].
        shift_bias: The bias of Conv and Gemm is within reach of the accumulator [AdjustShiftBias].
        hard_sigmoid: Input and output of HardSigmoid are within the positions of its table [AdjustHardSigmoid].
        swish: The product x * HardSigmoid(x) is cut by 0 to 15 bits [AdjustShiftSwish].
        max_rounds: How often the rules are repeated at most [MaxLoopNum].
    """

    align_concat: bool = True
    align_pool: bool = True
    align_pad: bool = True
    align_slice: bool = True
    shift_read: bool = True
    shift_write: bool = True
    shift_cut: bool = True
    shift_bias: bool = True
    hard_sigmoid: bool = True
    swish: bool = True
    max_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_rounds < 1:
            raise RecipeError(
                f"NpuLimits.max_rounds must be at least 1, got {self.max_rounds!r}; to leave positions as calibration "
                "chose them, use ScaleOptions(npu=None)"
            )
