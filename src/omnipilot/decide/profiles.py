"""Operating points: named sets of value per token, limits and weights."""

from __future__ import annotations

from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Final

from omnipilot.decide.economics import DecisionWeights
from omnipilot.domain import UnknownNameError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.decide.economics import Economics

_MS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Profile:
    """One operating point.

    Limits apply where the request sets none. ``carbon_usd_per_kg`` applies where the site's own
    carbon price is lower.
    """

    name: str
    meaning: str
    value_per_token_usd: float
    weights: DecisionWeights = field(default_factory=DecisionWeights)
    ttft_limit_s: float | None = None
    tpot_limit_s: float | None = None
    carbon_usd_per_kg: float = 0.0


# The values per token and the limits of slo-constrained are the paper's operating points. The
# other weights and limits are choices, explained in docs/utility.md. 0.19 USD/kg: US EPA, Report
# on the Social Cost of Greenhouse Gases (2023), 190 USD per tonne of CO2 at 2 % discount.
PROFILES: Final[tuple[Profile, ...]] = (
    Profile("cost-conscious", "tokens are cheap, GPUs are not", 2e-7),
    Profile("throughput-first", "tokens are worth five times as much: more of them wins", 1e-6),
    Profile(
        "latency-first",
        "an interactive service: tight limits, a missed one counts tenfold",
        2e-7,
        DecisionWeights(slo=10.0, queue=2.0),
        ttft_limit_s=500 * _MS,
        tpot_limit_s=30 * _MS,
    ),
    Profile(
        "energy-first",
        "electricity's emissions count 25-fold, the price of GPUs a quarter",
        2e-7,
        DecisionWeights(compute=0.25, carbon=25.0),
        carbon_usd_per_kg=0.19,
    ),
    Profile(
        "slo-constrained",
        "cost-conscious with TTFT of 1 s and TPOT of 50 ms promised",
        2e-7,
        ttft_limit_s=1.0,
        tpot_limit_s=50 * _MS,
    ),
)
PROFILE_NAMES: Final[tuple[str, ...]] = tuple(p.name for p in PROFILES)


def find_profile(name: str) -> Profile:
    """Profile of that name.

    Raises:
        UnknownNameError: no such profile; the text lists them.
    """
    for profile in PROFILES:
        if profile.name == name:
            return profile
    raise UnknownNameError(f"no profile '{name}': say one of {', '.join(PROFILE_NAMES)}")


def override_weights(weights: DecisionWeights, overrides: Mapping[str, float]) -> DecisionWeights:
    """Weights with some terms replaced.

    Raises:
        UnknownNameError: a name that is no term; the text lists them.
        UsageError: a weight below 0.
    """
    if not overrides:
        return weights
    known = asdict(weights)
    for name in overrides:
        if name not in known:
            raise UnknownNameError(f"no utility term '{name}': say one of {', '.join(known)}")
    return DecisionWeights(**{**known, **overrides})


def apply_profile(
    name: str | None,
    site: Economics,
    *,
    value_per_token_usd: float | None = None,
    weights: Mapping[str, float] | None = None,
) -> tuple[Economics, DecisionWeights]:
    """Economics and weights of one request: its own words first, then the profile, then the site.

    Args:
        name: profile, or None for the site's own value per token and all weights 1.
        site: the site's prices and limits; the request's own limits are put in when ranking.
        value_per_token_usd: the request's own value, if any.
        weights: the request's own weights by term, if any.

    Returns:
        (economics, weights).

    Raises:
        UnknownNameError: no such profile or term.
        UsageError: a value or weight outside its range.
    """
    economics, base = site, DecisionWeights()
    if name is not None:
        profile = find_profile(name)
        base = profile.weights
        economics = replace(
            site,
            value_per_token_usd=profile.value_per_token_usd,
            ttft_limit_s=site.ttft_limit_s or profile.ttft_limit_s,
            tpot_limit_s=site.tpot_limit_s or profile.tpot_limit_s,
            carbon_usd_per_kg=max(site.carbon_usd_per_kg, profile.carbon_usd_per_kg),
        )
    if value_per_token_usd is not None:
        economics = replace(economics, value_per_token_usd=value_per_token_usd)
    return economics, override_weights(base, weights or {})
