"""Compare the fit verdict with reported launches and write docs/launch-cases.md.

    uv run python benchmarks/fits_cases.py --shared ../shared --out docs/launch-cases.md

Each table row becomes one question. The translation reads only what the row states: a drafter in
the model's name, a pipeline size in the tp column, a remark in parentheses. Where a row speaks of
any model with some property, a named model of that property stands in; where it says "any" GPU, an
H100 does.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnipilot.catalog.catalog import Catalog
from omnipilot.catalog.engines import launch_rules
from omnipilot.costmodel.feasibility import REASON_CODES, FitQuestion, check_fit
from omnipilot.costmodel.fit_question import kv_dtype
from omnipilot.costmodel.kv import kv_layout
from omnipilot.domain.errors import UsageError

if TYPE_CHECKING:
    from omnipilot.domain.feasibility import FitVerdict

ANY_GPU: Final = "h100-80"
DENSE: Final = "meta-llama/Llama-3.1-8B-Instruct"

# Rows about every model with a property: (pattern, model that has it, formats where not stated).
STAND_INS: Final = (
    (re.compile(r"^dense FP8 W8A8 checkpoint$"), DENSE),
    (re.compile(r"^any FP8 checkpoint$"), DENSE),
    (re.compile(r"^GPTQ checkpoint \(fp32 activations\)$"), DENSE),
    (re.compile(r"^any with PP>1 \+ speculative decoding$"), DENSE),
)

# Why a row cannot be decided: (column, what it says, why); the first match answers.
UNDECIDABLE: Final = tuple(
    (column, re.compile(pattern), why)
    for column, pattern, why in (
        ("model", r"unstated", "names no model"),
        ("gpu", r"unstated", "names no GPU"),
        ("model", r"^any FP8/FP4 checkpoint$", "names no model and two formats; dense fp8 runs"),
        ("model", r"^any TP>1$", "a launch precondition, not memory: the verdict says it"),
        ("model", r"^any$", "names no model"),
        ("gpu", r"GPU UUIDs", "a Slurm environment variable, not model or memory"),
        ("model", r"training", "a training job, not a serving launch"),
        ("engine_version", r"TGIS", "another engine, out of memory under load, not at start-up"),
        ("gpu", r"AIC-generated", "names no GPU kind and no tensor parallel"),
        ("tp", r"2 nodes", "two nodes; the same layout runs on Hopper in C035 and C036"),
        ("gpu", r"16 GB GPU|mixed \(", "names no GPU kind"),
    )
)


KV_NOTE: Final = """\
`KV GiB` is the measured pool of one GPU and ours. The gpt-oss-120b row says share 0.9, but its own
figures add up to 0.95 (64.38 + 7.38 + 0.13 + 3.33 GiB of 79.2)."""
NOT_MONOTONE: Final = """\
- vLLM V0 turns chunked prefill on above 32,768 tokens of max_model_len: the profile run then takes
  512 or 2,048 tokens instead of the whole length, so 35,000 may start where 29,000 does not. On one
  side of that switch, and in V1, a longer max_model_len never helps.
- From vLLM 0.9 on, parts of at least 70 GiB (A100 left out) profile 1,024 sequences and 8,192
  tokens instead of 256 and 2,048: up to 7 GiB more before 0.17. With these two set, more memory
  never hurts."""


@dataclass(frozen=True)
class Case:
    """One reported launch and what the check says of it; ``why_not`` where it cannot be asked."""

    id: str
    launch: str
    observed: str
    printed_tokens: int | None
    verdict: FitVerdict | None
    why_not: str = ""

    @property
    def right(self) -> bool:
        """Whether the verdict is the observed one."""
        return self.verdict is not None and self.verdict.verdict == self.observed

    @property
    def token_error(self) -> float | None:
        """Relative error of the KV-cache tokens, where both are known."""
        if self.verdict is None or not self.printed_tokens or not self.verdict.kv_cache_tokens:
            return None
        return self.verdict.kv_cache_tokens / self.printed_tokens - 1.0


def question_of(row: dict[str, str], catalog: Catalog) -> FitQuestion:
    """Translate one row of launch_cases.csv.

    Raises:
        UsageError: the row names no model, GPU or format that the catalogue knows.
    """
    name = row["model"]
    stand_in = next((model for pattern, model in STAND_INS if pattern.search(name)), "")
    model = catalog.model(stand_in or re.split(r"\s\+\s", name)[0])
    gpu_text = row["gpu"]
    if gpu_text in ("any", "unstated") or gpu_text.startswith("mixed"):
        gpu = catalog.gpu(ANY_GPU)
    else:
        gpu = catalog.gpu(gpu_text, float(row["gpu_mem_gb"]) if row["gpu_mem_gb"] else None)
    text = row["precision"]
    precision = catalog.precision(model.native_precision if text in ("", "any") else text)
    pipeline = re.search(r"PP(\d+)", row["tp"])
    stages = int(pipeline[1]) if pipeline else (2 if "PP>1" in name else 1)
    return FitQuestion(
        model=model,
        gpu=gpu,
        precision=precision,
        tensor_parallel=int(re.findall(r"\d+", row["tp"] or "1")[0]),
        pipeline_parallel=stages,
        kv_dtype=row["kv_dtype"] or "auto",
        max_model_len=int(row["max_model_len"]) if row["max_model_len"] else None,
        gpu_memory_utilization=float(row["gpu_memory_utilization"] or 0) or None,
        engine_version=row["engine_version"],
        speculative="drafter" in name or "speculative" in name,
        dtype="float32" if "fp32 activations" in name else "auto",
    )


def launch_case(row: dict[str, str], catalog: Catalog) -> Case:
    """Judge one row of launch_cases.csv."""
    printed = int(row["kv_cache_tokens"]) if row["kv_cache_tokens"] else None
    launch = ", ".join(
        part for part in (
            row["model"], f"{row['tp'] or '?'}x {row['gpu']}", row["precision"],
            f"len {row['max_model_len']}" if row["max_model_len"] else "",
            f"share {row['gpu_memory_utilization']}" if row["gpu_memory_utilization"] else "",
            row["engine_version"],
        ) if part
    )  # fmt: skip
    if not any(pattern.search(row["model"]) for pattern, _ in STAND_INS) and not (
        row["observed"] == "unsupported" and row["gpu"].startswith("mixed")
    ):
        for column, pattern, why in UNDECIDABLE:
            if pattern.search(row[column]):
                return Case(row["id"], launch, row["observed"], printed, None, why)
    try:
        verdict = check_fit(question_of(row, catalog))
    except UsageError as error:
        return Case(row["id"], launch, row["observed"], printed, None, str(error))
    return Case(row["id"], launch, row["observed"], printed, verdict)


def launch_cases(path: Path, catalog: Catalog) -> list[Case]:
    """Judge every row of launch_cases.csv."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [launch_case(row, catalog) for row in csv.DictReader(stream)]


def token_checks(path: Path, catalog: Catalog) -> list[tuple[str, int, int]]:
    """Tokens of a stated KV pool: (id, printed, ours), for rows whose GPU is not stated.

    These rows print the pool in GiB, so the layout alone is checked.
    """
    found = []
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            pool = re.search(r"^(?:Available KV )?([\d.]+) GiB", row["other"])
            if not pool or "unstated" not in row["gpu"] or not row["kv_cache_tokens"]:
                continue
            try:
                model = catalog.model(row["model"])
            except UsageError:
                continue
            layout = kv_layout(
                model, int(row["tp"]), 1, kv_dtype(row["kv_dtype"]).bytes_per_element, hybrid=True
            )
            tokens = layout.tokens(layout.blocks(float(pool[1]) * 2**30), 1, 8192, "groups")
            found.append((row["id"], int(row["kv_cache_tokens"]), tokens))
    return found


# Reported launches that a fit check cannot see: (pattern in the note, why).
_OUT_OF_SCOPE: Final = (
    (re.compile(r"backend"), "chooses an attention backend, which is not asked"),
    (re.compile(r"984 of 1000"), "started; crashed under load"),
    (re.compile(r"DP8"), "data-parallel attention, which is not asked"),
    (re.compile(r"DeepGEMM"), "switches a kernel library off, which is not asked"),
    (re.compile(r"chunked-prefill-size"), "out of memory under load"),
    (re.compile(r"prefix caching"), "another engine's feature"),
)
_OBSERVED: Final = {
    "ok": "fits",
    "oom": "oom",
    "unsupported": "unsupported",
    "crash": "unsupported",
}


def failure_case(number: int, row: dict[str, str], catalog: Catalog) -> tuple[Case, float | None]:
    """Judge one row of launch_failures; also the measured KV GiB of a GPU, where there is one."""
    launch = ", ".join(
        part for part in (
            row["model"], f"{row['n_gpus']}x {row['gpu']}", row["precision"],
            f"len {row['max_model_len']}" if row["max_model_len"] else "",
            f"{row['engine']} {row['engine_version']}".strip(),
        ) if part
    )  # fmt: skip
    observed = _OBSERVED[row["status"]]
    measured = float(row["kv_cache_gib_per_gpu"]) if row["kv_cache_gib_per_gpu"] else None
    case_id = f"F{number:02d}"
    for pattern, why in _OUT_OF_SCOPE:
        if pattern.search(row["notes"]):
            return Case(case_id, launch, observed, None, None, why), measured
    try:
        stages = re.search(r"pipeline parallel size (\d+)", row["notes"])
        verdict = check_fit(
            FitQuestion(
                model=catalog.model(row["model"]),
                gpu=catalog.gpu(row["gpu"], float(row["gpu_mem_gb"])),
                precision=catalog.precision(row["precision"]),
                tensor_parallel=1 if stages else int(row["n_gpus"]),
                pipeline_parallel=int(stages[1]) if stages else 1,
                max_model_len=int(row["max_model_len"]) if row["max_model_len"] else None,
                gpu_memory_utilization=float(row["gpu_mem_util"] or 0) or None,
                engine=row["engine"],
                engine_version=row["engine_version"],
            )
        )
    except UsageError as error:
        return Case(case_id, launch, observed, None, None, str(error)), measured
    return Case(case_id, launch, observed, None, verdict), measured


def failure_cases(path: Path, catalog: Catalog) -> list[tuple[Case, float | None]]:
    """Judge every row of launch_failures/normalised.csv."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [failure_case(i, row, catalog) for i, row in enumerate(csv.DictReader(stream), 1)]


def decided(cases: list[Case]) -> list[Case]:
    """Cases with an outcome that the check answered."""
    outcomes = ("fits", "oom", "unsupported")
    return [case for case in cases if case.observed in outcomes and case.verdict is not None]


def report(
    cases: list[Case], checks: list[tuple[str, int, int]], failures: list[tuple[Case, float | None]]
) -> str:
    """The page: what was right, what was not asked and why, tokens against the printed ones."""
    judged = decided(cases)
    right = sum(case.right for case in judged)
    errors = [abs(e) for case in cases if (e := case.token_error) is not None]
    errors += [abs(ours / printed - 1.0) for _, printed, ours in checks]
    lines = [
        "# Launch cases",
        "",
        "<!-- Written by benchmarks/fits_cases.py; run it again instead of editing. -->",
        "",
        "How `omnipilot fits` answers launches that people reported, and start-up memory that was",
        "measured. Each rule is a mechanism with its source (`catalog/data/launch_rules.toml`,",
        "`catalog/data/engines.toml`); none is tied to a row of these tables.",
        "",
        (
            f"- Verdict right: {right} of {len(judged)} decidable rows"
            f" ({100.0 * right / max(len(judged), 1):.0f} %)."
        ),
        (
            f"- KV-cache tokens: median error {100.0 * statistics.median(errors):.1f} % over"
            f" {len(errors)} printed numbers."
        ),
        "",
        "## Decidable rows",
        "",
        "| id | launch | reported | verdict | reason |",
        "|---|---|---|---|---|",
    ]
    for case in judged:
        v = case.verdict
        assert v is not None  # noqa: S101 - decided() keeps rows with a verdict
        mark = "" if case.right else " **(wrong)**"
        lines.append(
            f"| {case.id} | {_cell(case.launch)} | {case.observed} | {v.verdict}{mark} |"
            f" {_cell(v.reason)} |"
        )
    lines += [
        "",
        "## Rows with an outcome that do not state enough",
        "",
        "| id | launch | why |",
        "|---|---|---|",
    ]
    outcomes = ("fits", "oom", "unsupported")
    lines += [
        f"| {case.id} | {_cell(case.launch)} | {_cell(case.why_not)} |"
        for case in cases
        if case.observed in outcomes and case.verdict is None
    ]
    lines += ["", "## KV-cache tokens", "", "| id | printed | ours | error |", "|---|---|---|---|"]
    for case in cases:
        error = case.token_error
        if error is not None and case.verdict is not None:
            lines.append(
                f"| {case.id} | {case.printed_tokens:,} | {case.verdict.kv_cache_tokens:,} |"
                f" {100.0 * error:+.1f} % |"
            )
    lines += [
        f"| {name} (from its stated pool) | {printed:,} | {ours:,} |"
        f" {100.0 * (ours / printed - 1.0):+.1f} % |"
        for name, printed, ours in checks
    ]
    lines += [
        "",
        "## Measured start-up memory (vLLM 0.11.0 on H100) and reported failures",
        "",
        *KV_NOTE.splitlines(),
        "",
        "| row | launch | reported | verdict | KV GiB |",
        "|---|---|---|---|---|",
    ]
    for case, measured in failures:
        if case.verdict is None:
            head = f"| {case.id} | {_cell(case.launch)} | {case.observed} |"
            lines.append(f"{head} not asked: {_cell(case.why_not)} | |")
            continue
        kv = case.verdict.kv_gib_per_gpu
        pool = f"{measured:.2f} / {kv:.2f}" if measured is not None and kv is not None else ""
        mark = "" if case.right else " **(wrong)**"
        lines.append(
            f"| {case.id} | {_cell(case.launch)} | {case.observed} | {case.verdict.verdict}{mark}:"
            f" {case.verdict.reason_code} | {pool} |"
        )
    lines += _reference()
    return "\n".join(lines) + "\n"


def _reference() -> list[str]:
    """What the codes mean, the rules behind them and where sizes are not monotone."""
    lines = ["", "## Reason codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| `{code}` | {meaning} |" for code, meaning in REASON_CODES.items()]
    lines += ["", "## Rules", "", "| rule | versions | mechanism | source |", "|---|---|---|---|"]
    for rule in launch_rules().rules:
        first = ".".join(map(str, rule.since)) if rule.since > (0, 0, 0) else ""
        last = "before " + ".".join(map(str, rule.until)) if rule.until < (9999, 0, 0) else ""
        span = " ".join(filter(None, (rule.engine, f"from {first}" if first else "", last)))
        lines.append(f"| `{rule.id}` | {span} | {rule.mechanism} | {_cell(rule.source)} |")
    lines += [
        "",
        "## Where more is not better",
        "",
        *NOT_MONOTONE.splitlines(),
    ]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "/")


def main() -> None:
    """Write the page and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("docs/launch-cases.md"))
    options = parser.parse_args()
    catalog = Catalog.load()
    table = options.shared / "cases" / "launch_cases.csv"
    cases = launch_cases(table, catalog)
    failures = failure_cases(
        options.shared / "data" / "launch_failures" / "normalised.csv", catalog
    )
    text = report(cases, token_checks(table, catalog), failures)
    options.out.write_text(text, encoding="utf-8")
    print(f"wrote {options.out}: {text.splitlines()[8]} {text.splitlines()[9]}")
    for case in decided(cases):
        if not case.right and case.verdict is not None:
            print(case.id, case.observed, case.verdict.verdict, case.verdict.reason)


if __name__ == "__main__":
    main()
