"""Find out where the error of a quantized model comes from, tensor by tensor, and what to do about it."""

from quantry.diagnosis.calibration import CalibrationCheck, check_calibration
from quantry.diagnosis.diagnosis import Diagnosis, diagnose
from quantry.diagnosis.evidence import Fall, Finding
from quantry.diagnosis.fix import Fix
from quantry.diagnosis.pair import PairDiagnosis, diagnose_pair
from quantry.diagnosis.pixels import PixelCheck, PixelChoice, check_pixels, command_line
from quantry.diagnosis.tensor_health import TensorHealth, tensor_health

__all__ = [
    "CalibrationCheck",
    "Diagnosis",
    "Fall",
    "Finding",
    "Fix",
    "PairDiagnosis",
    "PixelCheck",
    "PixelChoice",
    "TensorHealth",
    "check_calibration",
    "check_pixels",
    "command_line",
    "diagnose",
    "diagnose_pair",
    "tensor_health",
]
