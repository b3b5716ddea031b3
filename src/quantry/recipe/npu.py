"""Rules of integer NPUs with power-of-two scales: operator conversions and limits on fraction bits.

A tensor's number of fraction bits, ``-log2(scale)``, is called its position in AMD Quark and in reports.
"""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked


@dataclass(frozen=True)
class NpuConversions(Checked):
    """Replaces operators by what the NPU computes instead; AMD Quark's SimulateDPU.

    The first six change the function of the model, as the hardware does; the others only rewrite it. The names in
    brackets are AMD Quark's.

    Attributes:
        leaky_relu: Round the slope of LeakyRelu to a multiple of 1/256 [ConvertLeakyReluToDPUVersion].
        sigmoid_to_hard_sigmoid: Replace Sigmoid by HardSigmoid(1/6, 0.5) [ConvertSigmoidToHardSigmoid].
        hard_sigmoid: Multiply the result of HardSigmoid(1/6, 0.5) by (2731/16384) / (1/6)
            [ConvertHardSigmoidToDPUVersion].
        average_pool: Multiply the result of AveragePool and GlobalAveragePool by the ratio of the NPU's fixed-point
            reciprocal of the kernel size to the exact one [ConvertAvgPoolToDPUVersion].
        reduce_mean: The same for ReduceMean over height and width [ConvertReduceMeanToDPUVersion].
        clip: Round the bounds of Clip to integers [ConvertClipToDPUVersion].
        reduce_mean_to_pool: Write ReduceMean over height and width as GlobalAveragePool
            [ConvertReduceMeanToGlobalAvgPool].
        split_large_pool: Write GlobalAveragePool over more than 512 values as AveragePool and GlobalAveragePool
            [SplitLargeKernelPool].
        hard_swish: Write HardSwish as ``x * HardSigmoid(x)``; the NPU has no HardSwish.
        split_to_slice: Write Split as one Slice per output [ConvertSplitToSlice].
        batch_norm_to_conv: Write BatchNormalization that cannot be folded as a depthwise 1x1 Conv [ConvertBNToConv].
    """

    leaky_relu: bool = True
    sigmoid_to_hard_sigmoid: bool = True
    hard_sigmoid: bool = True
    average_pool: bool = True
    reduce_mean: bool = True
    clip: bool = False
    reduce_mean_to_pool: bool = True
    split_large_pool: bool = True
    hard_swish: bool = True
    split_to_slice: bool = True
    batch_norm_to_conv: bool = True


@dataclass(frozen=True)
class NpuLimits(Checked):
    """Limits of the NPU's shifters on the fraction bits of neighbouring tensors; AMD Quark's NPULimitationCheck.

    Each rule changes fraction bits until its limit holds. All enabled rules run in the order of the fields and are
    repeated until nothing changes. The names in brackets are AMD Quark's.

    Attributes:
        align_concat: Inputs and output of Concat have equal fraction bits [AlignConcat].
        align_pool: Input and output of MaxPool, AveragePool and GlobalAveragePool have equal fraction bits [AlignPool].
        align_pad: Input and output of Pad have equal fraction bits [AlignPad].
        align_slice: Input and output of Slice have equal fraction bits [AlignSlice].
        shift_read: Operands of Add and Sub differ by at most 7 fraction bits [AdjustShiftRead].
        shift_write: The output shifter reaches the result of Add and Mul [AdjustShiftWrite].
        shift_cut: The accumulator of Conv and Gemm is shifted right by 0 to 16 bits [AdjustShiftCut].
        shift_bias: The accumulator's shifter reaches the bias of Conv and Gemm [AdjustShiftBias].
        hard_sigmoid: Input and output of HardSigmoid are within the range of its table [AdjustHardSigmoid].
        swish: The product x * HardSigmoid(x) is shifted right by 0 to 15 bits [AdjustShiftSwish].
        max_rounds: Maximum number of passes over the rules [MaxLoopNum].
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
                f"NpuLimits.max_rounds must be at least 1, got {self.max_rounds!r}; to keep the scales of calibration, "
                "use ScaleOptions(npu=None)"
            )
