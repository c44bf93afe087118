"""What must not change the advice, and which way it must go where something does.

The cost model knows bandwidths and formats, not names, so that a relation between two answers is
one of the advice and not of a fit. vLLM itself knows A100, H100 and H200 by name (how many
sequences it runs by default), so other names are tried on kinds below 70 GiB. That more bandwidth
is never slower under the prior is in tests/costmodel/test_physics.py, that more memory never makes
a launch unfit in test_feasibility.py.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Question
from omnipilot.cli.advise import question_of
from omnipilot.domain import ServingRequest, Slo
from omnipilot.settings import Settings

if TYPE_CHECKING:
    from omnipilot.advisor import Advice
    from omnipilot.domain import RankedArm

MODELS = ("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-70B-Instruct", "openai/gpt-oss-20b")
KINDS = ("h100-80", "a100-80", "l40s-48", "a100-40", "h200-141")
RENAMED = ("l40s-48", "a100-40", "a10-24", "a40-48", "l4-24")
# The inputs are few and small: there is nothing to shrink.
FEW = settings(
    max_examples=12, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)

loads = st.builds(
    ServingRequest,
    model_id=st.sampled_from(MODELS),
    concurrency=st.sampled_from((1, 16, 200)),
    context_tokens=st.sampled_from((2048, 8192)),
    prompt_tokens=st.sampled_from((256, 1024)),
    output_tokens=st.sampled_from((64, 1024)),
    duration_h=st.sampled_from((0.5, 1.0, 24.0)),
    slo=st.sampled_from((Slo(), Slo(ttft_p50_s=1.0, tpot_p50_s=0.05))),
)
kinds = st.sampled_from(KINDS)


def answer(
    request: ServingRequest,
    gpus: tuple[str, ...] = KINDS,
    files: dict[str, str] | None = None,
    measured: tuple[str, ...] | None = None,
    **changes: object,
) -> Advice:
    """Ask a site that has these files; only the ``measured`` kinds have support, all if None."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, text in (files or {}).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, encoding="utf-8")
        advisor = Advisor(home, model=StandInModel(measured))
        return advisor.advise(Question(request, gpus=gpus, **changes))  # type: ignore[arg-type]


def labels(advice: Advice) -> list[str]:
    return [a.arm.label for a in advice.recommendation.ranked]


def totals(advice: Advice) -> list[float]:
    return [a.utility.total_usd for a in advice.recommendation.ranked]


def keys(arm: RankedArm) -> tuple[str, int, str]:
    return arm.arm.gpu_kind, arm.arm.tensor_parallel, arm.arm.precision


@FEW
@given(loads, kinds, st.floats(1.0, 4.0))
def test_more_memory_never_makes_a_fitting_arm_unfit(
    request: ServingRequest, kind: str, factor: float
) -> None:
    before = answer(request)
    gib = Advisor(Path("/nonexistent")).catalog.gpu(kind).memory_gib * factor
    larger = f'[{kind}]\nlike = "{kind}"\nmemory_gib = {gib}\nsource = "a test"\n'
    after = answer(request, files={"gpus/larger.toml": larger})
    assert set(map(keys, before.recommendation.ranked)) <= set(
        map(keys, after.recommendation.ranked)
    )


@FEW
@given(loads, kinds, st.floats(1.0, 10.0), st.none() | st.lists(kinds, unique=True).map(tuple))
def test_a_higher_price_never_lifts_the_gpu_over_another(
    request: ServingRequest, kind: str, factor: float, measured: tuple[str, ...] | None
) -> None:
    price = Settings.load().price_usd_by_kind[kind] * factor
    dearer = f"[price_usd_per_gpu_h]\n{kind} = {price}\n"
    before = answer(request, measured=measured).recommendation.ranked
    changed = answer(request, files={"settings.toml": dearer}, measured=measured)
    after = changed.recommendation.ranked
    place = {keys(arm): i for i, arm in enumerate(after)}
    assert place.keys() == {keys(arm) for arm in before}
    for i, better in enumerate(before):
        for worse in before[i + 1 :]:
            if worse.arm.gpu_kind == kind != better.arm.gpu_kind:
                assert place[keys(better)] < place[keys(worse)]
    same = [keys(arm) for arm in before if arm.arm.gpu_kind != kind]
    assert sorted(same, key=place.__getitem__) == same


@FEW
@given(loads, st.floats(0.01, 0.99))
def test_another_currency_changes_only_the_numbers(request: ServingRequest, rate: float) -> None:
    site = Settings.load()
    amounts = ("wait_cost_usd_per_h", "slo_penalty_usd_per_h", "electricity_usd_per_kwh",
               "value_usd_per_token")  # fmt: skip
    lines = [f"{name} = {getattr(site, name) * rate!r}" for name in amounts]
    prices = [f"{kind} = {site.price_usd_by_kind[kind] * rate!r}" for kind in KINDS]
    text = "\n".join([*lines, "[price_usd_per_gpu_h]", *prices])
    ours, theirs = answer(request), answer(request, files={"settings.toml": text})
    assert labels(ours) == labels(theirs)
    assert [t * rate for t in totals(ours)] == pytest.approx(totals(theirs), rel=1e-9, abs=1e-9)


@FEW
@given(loads, st.floats(1.0, 3.0))
def test_power_overhead_and_tariff_count_by_their_product(
    request: ServingRequest, pue: float
) -> None:
    site = Settings.load()
    tariff = site.pue * site.electricity_usd_per_kwh / pue
    text = f"pue = {pue!r}\nelectricity_usd_per_kwh = {tariff!r}\n"
    ours, theirs = answer(request), answer(request, files={"settings.toml": text})
    assert labels(ours) == labels(theirs)
    assert totals(ours) == pytest.approx(totals(theirs), rel=1e-9)


def test_milliseconds_of_the_command_line_are_seconds_of_the_program() -> None:
    said = question_of(
        model_id=MODELS[0], context_tokens=4096, prompt_tokens=None, output_tokens=None,
        slo_ttft_ms=800.0, slo_tpot_ms=40.0, weights=(), gpus=KINDS, precisions=None,
        model_config=None, allow_fetch=False, profile=None, value_per_token=None, concurrency=64,
    )  # fmt: skip
    meant = ServingRequest(MODELS[0], 64, 4096, 3072, 1024, slo=Slo(0.8, 0.04))
    with_said = Advisor(Path("/nonexistent"), model=StandInModel()).advise(said)
    assert with_said.recommendation.ranked == answer(meant).recommendation.ranked


@FEW
@given(loads)
def test_other_spellings_of_the_same_things_change_nothing(request: ServingRequest) -> None:
    spelt = ("NVIDIA H100 80GB HBM3", "A100-SXM4-80GB", "nvidia_l40s", "a100 40gb", "H200")
    again = replace(request, model_id=request.model_id.upper())
    asked = answer(request, precisions=("bf16", "fp8"))
    other = answer(again, gpus=spelt[::-1], precisions=("FP8", "torch.bfloat16"))
    assert labels(asked) == labels(other)
    assert totals(asked) == totals(other)


@FEW
@given(loads, st.permutations(RENAMED))
def test_other_names_of_the_gpus_permute_the_answer(
    request: ServingRequest, order: list[str]
) -> None:
    named = {kind: f"board{i}-{kind.rsplit('-', 1)[1]}" for i, kind in enumerate(order)}
    prices = Settings.load().price_usd_by_kind
    catalog = Advisor(Path("/nonexistent")).catalog
    form = {kind: Settings.load().gpus_per_node(catalog.gpu(kind)) for kind in RENAMED}
    boards = "\n".join(f'[{new}]\nlike = "{old}"\nsource = "a test"' for old, new in named.items())
    site = "\n".join(
        [
            "[price_usd_per_gpu_h]", *(f"{new} = {prices[old]}" for old, new in named.items()),
            "[gpus_per_node]", *(f"{new} = {form[old]}" for old, new in named.items()),
        ]
    )  # fmt: skip
    files = {"gpus/boards.toml": boards, "settings.toml": site}
    ours, theirs = answer(request, RENAMED), answer(request, tuple(named.values()), files)
    old = {new: kind for kind, new in named.items()}
    back = {(old[k], n, p): t for (k, n, p), t in zip(map(keys, theirs.recommendation.ranked),
                                                     totals(theirs), strict=True)}  # fmt: skip
    assert back == dict(zip(map(keys, ours.recommendation.ranked), totals(ours), strict=True))


@FEW
@given(loads, kinds, st.floats(0.1, 1.0), st.floats(1.0, 3.0))
def test_a_dominated_gpu_changes_no_order(
    request: ServingRequest, kind: str, slower: float, dearer: float
) -> None:
    spec = Advisor(Path("/nonexistent")).catalog.gpu(kind)
    worse = (
        f'[worse-{spec.memory_gib:.0f}]\nlike = "{kind}"\nsource = "a test"\n'
        f"bandwidth_bytes_per_s = {spec.bandwidth_bytes_per_s * slower * 0.999}\n"
    )
    name = f"worse-{spec.memory_gib:.0f}"
    price = Settings.load().price_usd_by_kind[kind] * dearer
    files = {
        "gpus/worse.toml": worse,
        "settings.toml": f"[price_usd_per_gpu_h]\n{name} = {price}\n",
    }
    alone = answer(request)
    beside = answer(request, (*KINDS, name), files)
    assert labels(alone)[:1] == labels(beside)[:1]
    assert labels(alone) == [label for label in labels(beside) if "worse" not in label]
