"""Pure decisions: arms, priors, utility, ranking, abstention and fallback."""

from omnipilot.decide.arms import ArmSet, enumerate_arms, sixteen_bit
from omnipilot.decide.candidate import Candidate
from omnipilot.decide.economics import ArmCosts, DecisionWeights, Economics
from omnipilot.decide.fallback import (
    FALLBACK_RULE,
    FitOption,
    demanded_kv_tokens,
    smallest_fit_with_headroom,
)
from omnipilot.decide.priors import (
    LaunchCounts,
    LaunchPrior,
    LaunchSuccess,
    QueueWait,
    pooled_prior,
    queue_wait,
)
from omnipilot.decide.profiles import PROFILE_NAMES, PROFILES, Profile, apply_profile
from omnipilot.decide.rank import rank, recommend
from omnipilot.decide.refusal import nearest_miss, nothing_fits
from omnipilot.decide.utility import (
    TERM_NAMES,
    TERMS,
    UtilityTable,
    evaluate_utility,
    realised_utility_usd_per_h,
)

__all__ = [
    "FALLBACK_RULE", "PROFILES", "PROFILE_NAMES", "TERMS", "TERM_NAMES", "ArmCosts", "ArmSet",
    "Candidate", "DecisionWeights", "Economics", "FitOption", "LaunchCounts", "LaunchPrior",
    "LaunchSuccess", "Profile", "QueueWait", "UtilityTable", "apply_profile",
    "demanded_kv_tokens", "enumerate_arms", "evaluate_utility", "nearest_miss", "nothing_fits",
    "pooled_prior", "queue_wait", "rank", "realised_utility_usd_per_h", "recommend",
    "sixteen_bit", "smallest_fit_with_headroom",
]  # fmt: skip
