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
    Row,
    ServingWindow,
    StartupRun,
)
from omnipilot.domain.scenario import Scenario
from omnipilot.domain.targets import QUANTILES, TARGET_BY_NAME, TARGET_NAMES, TARGETS, Target

__all__ = [
    "QUANTILES", "TARGETS", "TARGET_BY_NAME", "TARGET_NAMES", "Abstention", "AmbiguousNameError",
    "Arm", "BadInputError", "BundleError", "ClusterJob", "FitVerdict", "GpuSpec", "InfeasibleArm",
    "InferenceRun", "JobStatistics", "ModelArch", "OmniPilotError", "PrecisionSpec", "RankedArm",
    "Recommendation", "Row", "Scenario", "ServingRequest", "ServingWindow", "Slo",
    "StackFingerprint", "StartupRun", "StateError", "SupportVerdict", "Target",
    "TargetPrediction", "ToolError", "UnknownNameError", "UsageError", "UtilityTerms",
]  # fmt: skip
