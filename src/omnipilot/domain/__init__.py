"""What the words mean: types with units, no I/O."""

from omnipilot.domain.arm import Arm, StackFingerprint
from omnipilot.domain.errors import (
    AmbiguousNameError,
    BadInputError,
    BundleError,
    OmniPilotError,
    StateError,
    ToolError,
    UnknownNameError,
    UsageError,
)
from omnipilot.domain.feasibility import FitVerdict
from omnipilot.domain.hardware import GpuSpec
from omnipilot.domain.model import ModelArch
from omnipilot.domain.precision import PrecisionSpec
from omnipilot.domain.prediction import SupportVerdict, TargetPrediction
from omnipilot.domain.probe_rows import HardwareProbe, RecoveryRun, TrainingRun
from omnipilot.domain.recommendation import (
    Abstention,
    InfeasibleArm,
    RankedArm,
    Recommendation,
    UtilityTerms,
)
from omnipilot.domain.request import ServingRequest, Slo
from omnipilot.domain.rows import (
    ClusterJob,
    InferenceRun,
    JobStatistics,
    LabelledRun,
    Row,
    ServingWindow,
    StartupRun,
)
from omnipilot.domain.scenario import Scenario
from omnipilot.domain.targets import QUANTILES, TARGET_BY_NAME, TARGET_NAMES, TARGETS, Target
from omnipilot.domain.telemetry_rows import GpuHealth, GpuSnapshot, GpuWindow

__all__ = [
    "QUANTILES", "TARGETS", "TARGET_BY_NAME", "TARGET_NAMES", "Abstention", "AmbiguousNameError",
    "Arm", "BadInputError", "BundleError", "ClusterJob", "FitVerdict", "GpuHealth", "GpuSnapshot",
    "GpuSpec", "GpuWindow", "HardwareProbe", "InfeasibleArm", "InferenceRun", "JobStatistics",
    "LabelledRun", "ModelArch", "OmniPilotError", "PrecisionSpec", "RankedArm", "Recommendation",
    "RecoveryRun", "Row", "Scenario", "ServingRequest", "ServingWindow", "Slo", "StackFingerprint",
    "StartupRun", "StateError", "SupportVerdict", "Target", "TargetPrediction", "ToolError",
    "TrainingRun", "UnknownNameError", "UsageError", "UtilityTerms",
]  # fmt: skip
