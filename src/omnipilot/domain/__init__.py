"""What the words mean: types with units, no I/O.

All but the errors is imported when first asked for: no answer needs all, and the help nothing.
"""

from typing import TYPE_CHECKING

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
from omnipilot.domain.on_demand import on_demand

if TYPE_CHECKING:
    from omnipilot.domain.arm import Arm, StackFingerprint
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
else:
    __getattr__ = on_demand(
        __name__,
        {
            "arm": ("Arm", "StackFingerprint"),
            "feasibility": ("FitVerdict",),
            "hardware": ("GpuSpec",),
            "model": ("ModelArch",),
            "precision": ("PrecisionSpec",),
            "prediction": ("SupportVerdict", "TargetPrediction"),
            "probe_rows": ("HardwareProbe", "RecoveryRun", "TrainingRun"),
            "recommendation": ("Abstention", "InfeasibleArm", "RankedArm", "Recommendation",
                               "UtilityTerms"),
            "request": ("ServingRequest", "Slo"),
            "rows": ("ClusterJob", "InferenceRun", "JobStatistics", "LabelledRun", "Row",
                     "ServingWindow", "StartupRun"),
            "scenario": ("Scenario",),
            "targets": ("QUANTILES", "TARGET_BY_NAME", "TARGET_NAMES", "TARGETS", "Target"),
            "telemetry_rows": ("GpuHealth", "GpuSnapshot", "GpuWindow"),
        },
    )  # fmt: skip

__all__ = [
    "QUANTILES", "TARGETS", "TARGET_BY_NAME", "TARGET_NAMES", "Abstention", "AmbiguousNameError",
    "Arm", "BadInputError", "BundleError", "ClusterJob", "FitVerdict", "GpuHealth", "GpuSnapshot",
    "GpuSpec", "GpuWindow", "HardwareProbe", "InfeasibleArm", "InferenceRun", "JobStatistics",
    "LabelledRun", "ModelArch", "OmniPilotError", "PrecisionSpec", "RankedArm", "Recommendation",
    "RecoveryRun", "Row", "Scenario", "ServingRequest", "ServingWindow", "Slo", "StackFingerprint",
    "StartupRun", "StateError", "SupportVerdict", "Target", "TargetPrediction", "ToolError",
    "TrainingRun", "UnknownNameError", "UsageError", "UtilityTerms",
]  # fmt: skip
