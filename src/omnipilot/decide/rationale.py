"""Why an arm wins and why the others lose, in a few plain words computed from the terms."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.decide.utility import TERMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.decide.candidate import Candidate
    from omnipilot.decide.economics import DecisionWeights
    from omnipilot.domain import ServingRequest, UtilityTerms

_NOTABLE_FRAC: Final = 0.1  # a difference below this share of the largest is not worth a word
_NEAR_TIE_FRAC: Final = 0.01  # of the best arm's serving value
_CENT_USD: Final = 0.005
_THROUGHPUT: Final = "aggregate_tokens_per_s"


class Scored(NamedTuple):
    """A candidate with its utility over the request's hours."""

    candidate: Candidate
    terms: UtilityTerms
    usd_per_h: float
    slo_violation_prob: float

    def median(self, target: str) -> float:
        """Median of a predicted target in its unit."""
        return self.candidate.targets[target].q50


def _ratio(mine: float, best: float) -> str:
    return f"{mine / best:.1f}x" if best > 0 else "more of"


def _share(mine: float, best: float) -> str:
    return f"{abs(mine - best) / best:.0%}" if best > 0 else "some"


def _tokens(mine: float, best: float, way: str) -> str:
    """Tokens as the ranking shows them, by medians; their value counts by the mean instead."""
    if (mine > best) == (way == "more"):
        return f"{_share(mine, best)} {way} tokens"
    return f"{'less' if way == 'fewer' else way} expected value of tokens"


# What to say of a term where an arm does worse, and where it does better, than the best arm.
_SIGNS: Final = tuple((term.name, term.sign) for term in TERMS)
_term_values: Final = attrgetter(*(term.field for term in TERMS))
_Phrase = tuple["Callable[[Scored, Scored], str]", "Callable[[Scored, Scored], str]"]
_PHRASES: Final[dict[str, _Phrase]] = {
    "serving_value": (
        lambda a, b: _tokens(a.median(_THROUGHPUT), b.median(_THROUGHPUT), "fewer"),
        lambda a, b: _tokens(a.median(_THROUGHPUT), b.median(_THROUGHPUT), "more"),
    ),
    "kv_saturation": (
        lambda a, _: f"KV cache {a.median('kv_cache_peak_frac'):.0%} full",
        lambda _a, _b: "a roomier KV cache",
    ),
    "compute": (
        lambda a, b: f"{_ratio(a.terms.compute_usd, b.terms.compute_usd)} the compute cost",
        lambda a, b: f"{_share(a.terms.compute_usd, b.terms.compute_usd)} cheaper compute",
    ),
    "queue": (
        lambda a, b: f"{a.candidate.wait_h - b.candidate.wait_h:.1f} h more in the queue",
        lambda a, b: f"{b.candidate.wait_h - a.candidate.wait_h:.1f} h less in the queue",
    ),
    "failure": (
        lambda _a, _b: "costlier failed starts",
        lambda _a, _b: "cheaper failed starts",
    ),
    "slo": (
        lambda a, _: f"misses the SLO with probability {a.slo_violation_prob:.0%}",
        lambda a, _: f"misses the SLO with probability {a.slo_violation_prob:.0%} only",
    ),
    "carbon": (
        lambda a, b: f"{_ratio(a.terms.carbon_usd, b.terms.carbon_usd)} the carbon cost",
        lambda a, b: f"{_share(a.terms.carbon_usd, b.terms.carbon_usd)} less carbon",
    ),
}


def usd_per_h_text(value: float) -> str:
    """Signed price, e.g. ``−$4.10/h``; two significant digits below a cent.

    >>> usd_per_h_text(1.5)
    '+$1.50/h'
    """
    sign = "−" if value < 0 else "+"
    size = abs(value)
    return f"{sign}${size:.2f}/h" if size >= _CENT_USD or size == 0 else f"{sign}${size:.2g}/h"


def _contributions(arm: Scored, best: Scored, weights: DecisionWeights) -> dict[str, float]:
    """Weighted difference of every term in the arm's favour, USD."""
    return {
        name: sign * getattr(weights, name) * (mine - theirs)
        for (name, sign), mine, theirs in zip(
            _SIGNS, _term_values(arm.terms), _term_values(best.terms), strict=True
        )
    }


def why_it_loses(
    arm: Scored, best: Scored, weights: DecisionWeights, duration_h: float, *, trusted: bool
) -> str:
    """What an arm that is not the best gives up, e.g. ``−$4.10/h: 2.0x the compute cost``.

    Args:
        arm: the arm to explain.
        best: the winner.
        weights: weight of each term.
        duration_h: hours of the request.
        trusted: False where the arm counts with its lower utility because it was not measured.

    Returns:
        One line.
    """
    difference = (arm.terms.total_usd - best.terms.total_usd) / duration_h
    parts = _contributions(arm, best, weights)
    rising = sorted(parts, key=parts.__getitem__)
    gain = max(parts, key=parts.__getitem__)
    notable = _NOTABLE_FRAC * max(-parts[rising[0]], parts[gain])
    words = [
        _PHRASES[name][0](arm, best)
        for name in rising[:2]
        if parts[name] < 0 and -parts[name] > notable
    ]
    text = usd_per_h_text(difference)
    if words:
        text = f"{text}: {', '.join(words)}"
    if parts[gain] > max(notable, 0.0):
        text = f"{text}{' for ' if words else ': '}{_PHRASES[gain][1](arm, best)}"
    if not trusted:
        axis = "; ".join(arm.candidate.support.violations[:1]) or "no support"
        sure = usd_per_h_text(arm.terms.lower_usd / duration_h)
        return f"{text}; not trusted: {axis} (worth at least {sure})"
    tie_usd = max(_CENT_USD, _NEAR_TIE_FRAC * best.terms.serving_value_usd / duration_h)
    return f"near tie, {text}" if abs(difference) < tie_usd else text


def why_it_wins(
    best: Scored, n_arms: int, request: ServingRequest, *, supported_exist: bool
) -> str:
    """What the best arm is worth, with a note where its KV cache cannot hold the load.

    Args:
        best: the winner.
        n_arms: feasible arms compared.
        request: the request.
        supported_exist: whether any compared arm was inside what was measured.

    Returns:
        One line.
    """
    tokens = best.median(_THROUGHPUT)
    text = f"best of {n_arms}: {tokens:,.0f} tok/s for ${best.usd_per_h:.2f}/h"
    if not best.candidate.support.supported:
        text = f"{text}; not measured"
        if supported_exist:
            text = f"{text}, yet its lower utility beats every measured arm"
    note = concurrency_note(best.candidate, request)
    return f"{text}; {note}" if note else text


def concurrency_note(candidate: Candidate, request: ServingRequest) -> str:
    """How many requests run at once where the KV cache cannot hold them all; else empty."""
    tokens = candidate.fit.kv_cache_tokens
    if not tokens:
        return ""
    running = tokens // (request.prompt_tokens + request.output_tokens)
    if running >= request.concurrency:
        return ""
    return f"about {max(running, 1)} of {request.concurrency} requests run at once, the rest wait"
