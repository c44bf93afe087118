from __future__ import annotations

import csv
import gzip
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog.gpu_names import GpuNames, compact
from omnipilot.catalog.gpus import LINK_RATES, GpuEntry, load_gpus
from omnipilot.domain.errors import (
    AmbiguousNameError,
    BadInputError,
    UnknownNameError,
    UsageError,
)
from omnipilot.domain.hardware import GpuSpec

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = load_gpus()
NAMES = GpuNames(ENTRIES)
SPECS = {e.spec.kind: e.spec for e in ENTRIES}
PARTS = [e for e in ENTRIES if not e.spec.is_mig]

REQUIRED_KINDS = {
    "a100-40",
    "a100-80",
    "a100-40-pcie",
    "a100-80-pcie",
    "h100-80",
    "h100-80-pcie",
    "h100-94-nvl",
    "h200-141",
    "h200-141-nvl",
    "h800-80",
    "h20-96",
    "b200-180",
    "b300-288",
    "gb200-186",
    "gh200-96",
    "gh200-144",
    "l40s-48",
    "l40-48",
    "l4-24",
    "a10-24",
    "a10g-24",
    "a30-24",
    "a40-48",
    "a6000-48",
    "rtx6000ada-48",
    "v100-16",
    "v100-32",
    "t4-16",
    "rtx3090-24",
    "rtx4090-24",
    "rtx5090-32",
    "rtxpro6000-96",
    "mi210-64",
    "mi250-128",
    "mi300x-192",
    "mi325x-256",
    "mi355x-288",
    "max1550-128",
    "gaudi2-96",
    "inferentia2-32",
    "sn40l-64",
}

SPELLINGS = {
    "H100": "h100-80",
    "h200": "h200-141",
    "GH200": "gh200-96",
    "B200": "b200-180",
    "A100-40GB": "a100-40",
    "a100 80g": "a100-80",
    "A100-SXM4-80GB": "a100-80",
    "A100-SXM-40GB": "a100-40",
    "A100-PCIE-40GB": "a100-40-pcie",
    "H100-SXM 80GB": "h100-80",
    "H100 SXM5": "h100-80",
    "H100-PCI-E": "h100-80-pcie",
    "H100 NVL (Azure NC80adis_H100_v5, 2 GPUs)": "h100-94-nvl",
    "NVIDIA H100 80GB HBM3": "h100-80",
    "NVIDIA H100 80GB HBM2e": "h100-80-pcie",
    "NVIDIA A100-SXM4-40GB": "a100-40",
    "NVIDIA A100 80GB PCIe": "a100-80-pcie",
    "NVIDIA H100 PCIe": "h100-80-pcie",
    "NVIDIA H100 NVL": "h100-94-nvl",
    "NVIDIA H200": "h200-141",
    "NVIDIA H200-NVL-141GB": "h200-141-nvl",
    "NVIDIA L40S": "l40s-48",
    "NVIDIA GH200 480GB": "gh200-96",
    "NVIDIA GH200 144G HBM3e": "gh200-144",
    "NVIDIA GH200 Grace Hopper Superchip 96GB": "gh200-96",
    "NVIDIA B300-SXM-270GB": "b300-288",
    "Tesla V100-SXM2-16GB": "v100-16",
    "Tesla V100-PCIE-32GB": "v100-32-pcie",
    "Tesla T4": "t4-16",
    "NVIDIA GeForce RTX 4090": "rtx4090-24",
    "RTX 3090": "rtx3090-24",
    "RTX 5090 Laptop": "rtx5090-laptop-24",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtxpro6000-96",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtxpro6000-96-workstation",
    "NVIDIA RTX A6000": "a6000-48",
    "RTX 6000 Ada": "rtx6000ada-48",
    "AMD Instinct MI300X OAM": "mi300x-192",
    "AMD Instinct MI355X 288GB HBM3e (Power Cap 1000 W)": "mi355x-288",
    "nvidia_h100_80gb_hbm3": "h100-80",
    "nvidia_a100-sxm4-40gb": "a100-40",
    "nvidia_a100_3g.20gb": "a100-40.mig-3g.20gb",
    "a100_3g.40gb": "a100-80.mig-3g.40gb",
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb+me": "a100-80.mig-1g.10gb",
    "A100-40GB MIG 3g.20gb": "a100-40.mig-3g.20gb",
    "NVIDIA GH200 480GB MIG 1g.12gb": "gh200-96.mig-1g.12gb",
    "gpu:h100:4": "h100-80",
    "gpu:h200:8(IDX:0-7)": "h200-141",
    "gres/gpu:nvidia_a100_3g.20gb=2": "a100-40.mig-3g.20gb",
    "8x H100": "h100-80",
    "Max1550": "max1550-128",
    "RTXPRO6000": "rtxpro6000-96",
    "MI300X": "mi300x-192",
    "MI250": "mi250-128",
    "A10G": "a10g-24",
    "Inferentia2": "inferentia2-32",
    "GB200": "gb200-186",
    "SN40L": "sn40l-64",
    "Gaudi 2": "gaudi2-96",
    "1g.6gb": "a30-24.mig-1g.6gb",
}


def test_every_kind_of_the_issue_is_in_the_table() -> None:
    assert set(SPECS) >= REQUIRED_KINDS


def test_no_kind_is_listed_twice() -> None:
    assert len(SPECS) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.spec.kind)
def test_each_kind_has_plausible_facts_with_a_source(entry: GpuEntry) -> None:
    spec = entry.spec
    assert spec.source
    assert spec.form in {"sxm", "pcie", "nvl", "oam", "superchip", "other"}
    assert 4.0 < spec.memory_gib < 300.0
    # What a framework sees is below the marketing size: at most 12 % less on whole parts.
    size = max(entry.sizes_gb)
    assert 0.85 * size < spec.memory_gib <= size
    assert 30e9 < spec.bandwidth_bytes_per_s <= 8e12
    assert max(spec.bf16_flops, spec.fp16_flops) > 0
    assert spec.fp16_flops >= spec.bf16_flops
    assert (spec.compute_capability > 0) == (spec.vendor == "nvidia")
    assert spec.n_sms > 0
    assert spec.link_bytes_per_s > 0


@pytest.mark.parametrize("entry", PARTS, ids=lambda e: e.spec.kind)
def test_low_bit_units_exist_exactly_from_the_generation_that_brought_them(
    entry: GpuEntry,
) -> None:
    spec = entry.spec
    if spec.vendor == "nvidia":
        assert (spec.bf16_flops > 0) == (spec.compute_capability >= 8.0)
        assert (spec.fp8_flops > 0) == (spec.compute_capability >= 8.9)
        assert (spec.fp4_flops > 0) == (spec.compute_capability >= 10.0)
    if spec.fp8_flops and spec.architecture != "inferentia2":
        assert spec.fp8_flops == pytest.approx(2 * spec.bf16_flops, rel=0.02)


def test_figures_of_well_known_parts_are_those_of_their_datasheets() -> None:
    h100, a100 = SPECS["h100-80"], SPECS["a100-40"]
    assert (h100.bandwidth_bytes_per_s, h100.link_bytes_per_s, h100.tdp_w) == (3.35e12, 450e9, 700)
    assert (a100.bandwidth_bytes_per_s, a100.link_bytes_per_s, a100.bf16_flops) == (
        1.555e12, 300e9, 312e12,
    )  # fmt: skip
    assert SPECS["b200-180"].link_bytes_per_s == 900e9
    assert SPECS["v100-16"].fp16_flops == 125e12
    assert SPECS["t4-16"].link_bytes_per_s == LINK_RATES["pcie3"]
    assert SPECS["h800-80"].link_bytes_per_s == 200e9


@pytest.mark.parametrize(("text", "kind"), SPELLINGS.items())
def test_a_spelling_people_meet_finds_its_kind(text: str, kind: str) -> None:
    assert NAMES.resolve(text).kind == kind


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.spec.kind)
def test_kind_name_and_aliases_find_the_kind_itself(entry: GpuEntry) -> None:
    for text in (entry.spec.kind, entry.spec.name, *entry.aliases):
        assert NAMES.resolve(text) is entry.spec
        assert NAMES.resolve(text, entry.spec.memory_gib) is entry.spec


@given(
    entry=st.sampled_from(ENTRIES),
    use_name=st.booleans(),
    upper=st.booleans(),
    separator=st.sampled_from([" ", "_", "-", "", "  "]),
)
def test_case_and_separators_do_not_matter(
    *, entry: GpuEntry, use_name: bool, upper: bool, separator: str
) -> None:
    text = entry.spec.name if use_name else entry.spec.kind
    text = separator.join(text.replace("-", " ").replace("_", " ").split())
    assert NAMES.resolve(text.upper() if upper else text.lower()) is entry.spec


def _kind_or_refusal(text: str) -> GpuSpec | UsageError:
    try:
        return NAMES.resolve(text)
    except UsageError as error:
        return error


@given(st.text(max_size=300))
def test_any_text_gives_a_kind_or_a_refusal_in_one_line(text: str) -> None:
    assert isinstance(_kind_or_refusal(text), GpuSpec | UsageError)


@given(st.lists(st.sampled_from(["sxm", "4", "80gb", "pcie", "hbm3", "g"]), max_size=60))
def test_long_runs_of_known_words_are_refused_without_delay(words: list[str]) -> None:
    assert isinstance(_kind_or_refusal("t4" + "".join(words)), GpuSpec | UsageError)


@pytest.mark.parametrize(
    ("text", "memory_gb", "kind"),
    [
        ("A100", 40, "a100-40"),
        ("A100", 80, "a100-80"),
        ("V100", 16, "v100-16"),
        ("V100", 32, "v100-32"),
        ("H100", 80, "h100-80"),
        ("H100", 79.6, "h100-80"),
        ("H100", 94, "h100-94-nvl"),
        ("GH200", 96, "gh200-96"),
        ("GH200", 144, "gh200-144"),
        ("B200", 180, "b200-180"),
        ("B200", 183, "b200-180"),
        ("B200", 192, "b200-180"),
        ("GB200", 192, "gb200-186"),
        ("B300", 288, "b300-288"),
        ("H200", 141, "h200-141"),
        ("MI250", 64, "mi250-128"),
        ("T4", 16, "t4-16"),
        ("RTX 5090 Laptop", 24, "rtx5090-laptop-24"),
        ("A100-40GB MIG 3g.20gb", 20, "a100-40.mig-3g.20gb"),
        ("A100 3g.20gb", 40, "a100-40.mig-3g.20gb"),
        ("A100 1g.10gb", 80, "a100-80.mig-1g.10gb"),
    ],
)
def test_a_memory_size_beside_the_name_decides(text: str, memory_gb: float, kind: str) -> None:
    assert NAMES.resolve(text, memory_gb).kind == kind


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("A100", {"a100-40", "a100-80"}),
        ("a100", {"a100-40", "a100-80"}),
        ("gres/gpu:a100=4", {"a100-40", "a100-80"}),
        ("V100", {"v100-16", "v100-32"}),
        ("A100-PCIe", {"a100-40-pcie", "a100-80-pcie"}),
        ("H100/H200", {"h100-80", "h200-141"}),
        ("3g.40gb", {"a100-80.mig-3g.40gb", "h100-80.mig-3g.40gb"}),
        ("3g.20gb", {"a100-40.mig-3g.20gb", "a100-40-pcie.mig-3g.20gb"}),
        ("a100_1g.10gb", {"a100-40.mig-1g.10gb", "a100-80.mig-1g.10gb"}),
    ],
)
def test_an_ambiguous_spelling_is_refused_with_its_candidates(
    text: str, candidates: set[str]
) -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        NAMES.resolve(text)
    assert candidates <= set(caught.value.candidates)
    for candidate in caught.value.candidates:
        assert candidate in str(caught.value)
        assert NAMES.resolve(candidate).kind == candidate


@pytest.mark.parametrize(
    ("text", "memory_gb", "told"),
    [
        ("h10", None, "h100-80"),
        ("A100X", None, "a100-80"),
        ("V100S-PCIE-32GB", None, "v100-32-pcie"),
        ("A100-SXM-64GB", None, "a100-80 (80 GB)"),
        ("A100", 64, "a100-40 (40 GB)"),
        ("H100", 96, "h100-94-nvl (94 GB)"),
        ("H100 1g.5gb", None, "1g.10gb"),
        ("l40s 3g.20gb", None, "none is known"),
        ("any", None, "gpus folder"),
        ("unstated (2 GPUs)", None, "gpus folder"),
        ("16 GB GPU x2", None, "gpus folder"),
        ("gpu:4", None, "gpus folder"),
        ("", None, "gpus folder"),
    ],
)
def test_an_unknown_kind_is_refused_with_what_exists(
    text: str, memory_gb: float | None, told: str
) -> None:
    with pytest.raises(UnknownNameError) as caught:
        NAMES.resolve(text, memory_gb)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("memory_gb", [0.0, -1.0, math.nan, math.inf])
def test_a_memory_size_that_is_no_size_is_refused(memory_gb: float) -> None:
    with pytest.raises(BadInputError):
        NAMES.resolve("H100", memory_gb)


def test_a_slice_has_its_share_of_the_part() -> None:
    part, half = SPECS["h100-80"], SPECS["h100-80.mig-3g.40gb"]
    assert half.is_mig
    assert half.parent == "h100-80"
    assert half.bf16_flops == pytest.approx(part.bf16_flops * 3 / 7)
    assert half.bandwidth_bytes_per_s == part.bandwidth_bytes_per_s / 2
    assert half.memory_gib == pytest.approx(part.memory_gib / 2 - 0.2)
    assert half.link == "none"
    assert SPECS["a30-24.mig-2g.12gb"].bf16_flops == SPECS["a30-24"].bf16_flops / 2


@pytest.mark.parametrize(
    ("kind", "gib"),
    [  # `nvidia-smi mig -lgip`, GiB
        ("a100-40.mig-1g.5gb", 4.75),
        ("a100-40.mig-2g.10gb", 9.62),
        ("a100-40.mig-3g.20gb", 19.50),
        ("a100-40.mig-7g.40gb", 39.25),
        ("a30-24.mig-2g.12gb", 11.69),
        ("h100-80.mig-1g.10gb", 9.75),
        ("h100-80.mig-2g.20gb", 19.62),
        ("h100-80.mig-3g.40gb", 39.50),
        ("h100-80.mig-7g.80gb", 79.25),
        ("h200-141.mig-1g.18gb", 16.00),
        ("h200-141.mig-2g.35gb", 32.50),
        ("h200-141.mig-7g.141gb", 140.00),
    ],
)
def test_slice_memory_agrees_with_the_driver_within_two_percent(kind: str, gib: float) -> None:
    assert SPECS[kind].memory_gib == pytest.approx(gib, rel=0.02)


def test_slices_of_one_part_never_offer_more_than_the_part() -> None:
    for spec in SPECS.values():
        if spec.is_mig:
            part = SPECS[spec.parent]
            assert spec.memory_gib < part.memory_gib or "7g" in spec.kind
            assert spec.memory_gib <= 1.002 * part.memory_gib
            assert spec.bandwidth_bytes_per_s <= part.bandwidth_bytes_per_s
            assert spec.bf16_flops <= part.bf16_flops * (1 + 1e-12)


ACME = """
[acme-x1-64]
name = "Acme X1 64GB"
vendor = "acme"
architecture = "x"
compute_capability = 0.0
memory_gib = 63.0
bandwidth_bytes_per_s = 2e12
bf16_flops = 400e12
tdp_w = 400.0
aliases = ["Wile E"]
"""


def _site(home: Path, text: str, name: str = "acme.toml") -> Path:
    (home / "gpus").mkdir(exist_ok=True)
    (home / "gpus" / name).write_text(text, encoding="utf-8")
    return home


def test_one_site_file_adds_a_kind_under_all_its_names(tmp_path: Path) -> None:
    entries = load_gpus(_site(tmp_path, ACME))
    names = GpuNames(entries)
    for text in ("acme-x1-64", "Acme X1", "ACME_X1_64GB", "wile e", "Acme X1 64GB"):
        assert names.resolve(text).kind == "acme-x1-64"
    spec = names.resolve("acme-x1-64")
    assert (spec.link, spec.link_bytes_per_s, spec.form) == ("pcie4", 32e9, "pcie")
    assert spec.fp16_flops == spec.bf16_flops
    assert spec.source == "site file acme.toml"
    assert [e.spec.kind for e in entries if e.site] == ["acme-x1-64"]
    assert len(entries) == len(ENTRIES) + 1


def test_a_site_kind_like_a_bundled_one_takes_its_facts_but_not_its_names(tmp_path: Path) -> None:
    home = _site(tmp_path, '[acme-h100-64]\nlike = "h100-80"\nmemory_gib = 63.4\n')
    names = GpuNames(load_gpus(home))
    spec = names.resolve("acme h100 64")
    assert spec.memory_gib == 63.4
    assert spec.fp8_flops == SPECS["h100-80"].fp8_flops
    assert spec.name == "acme-h100-64"
    assert names.resolve("NVIDIA H100 80GB HBM3").kind == "h100-80"
    assert names.resolve("acme-h100-64.mig-3g.40gb").parent == "acme-h100-64"


def test_a_site_corrects_a_bundled_kind_without_touching_those_like_it(tmp_path: Path) -> None:
    home = _site(tmp_path, '[h100-80]\nlike = "h100-80"\ntdp_w = 500.0\n')
    names = GpuNames(load_gpus(home))
    assert names.resolve("H100").tdp_w == 500.0
    assert names.resolve("H100").kind == "h100-80"
    assert names.resolve("H200").tdp_w == SPECS["h200-141"].tdp_w == 700.0


def test_a_kind_can_be_like_another_site_kind(tmp_path: Path) -> None:
    _site(tmp_path, '[acme-x2-64]\nlike = "acme-x1-64"\ntdp_w = 9.0\n', "a.toml")
    names = GpuNames(load_gpus(_site(tmp_path, ACME, "b.toml")))
    assert names.resolve("acme-x2").tdp_w == 9.0
    assert names.resolve("acme-x2").bandwidth_bytes_per_s == 2e12


def test_without_a_gpus_folder_the_bundled_kinds_stand(tmp_path: Path) -> None:
    assert load_gpus(tmp_path) == ENTRIES


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[x-1\n", "line 1"),
        ("kind = 3\n", "'kind' must stand in a table"),
        ("[X-1]\n", "lower case"),
        ("[x-1]\nmemory = 3\n", "unknown field"),
        ("[x-1]\nvendor = 'v'\n", "lacks architecture"),
        ("[x-1]\nmemory_gib = 'big'\n", "must be a number"),
        ("[x-1]\nmemory_gib = true\n", "must be a number"),
        ("[x-1]\nmemory_gib = nan\n", "must be a number"),
        ("[x-1]\nmemory_gib = 0\n", "above 0"),
        ("[x-1]\nvendor = 3\n", "must be a text"),
        ("[x-1]\nplain = 1\n", "true or false"),
        ("[x-1]\naliases = 'a'\n", "list of texts"),
        ("[x-1]\nsizes_gb = ['a']\n", "list of numbers"),
        ("[x-1]\nmig = [['half', 1, 1]]\n", "compute slices"),
        ("[x-1]\nlike = 'h100-80'\nmig_slices = [7]\n", "[compute, memory]"),
        ("[x-1]\nlike = 'h100'\n", "no other kind 'h100'"),
        ("[x-1]\nlike = 'x-2'\n[x-2]\nlike = 'x-1'\n", "no other kind"),
        ("[x-1]\nlike = 'h100-80'\nlink = 'tin cans'\n", "needs link_bytes_per_s"),
        ("\x00", "TOML"),
    ],
)
def test_a_bad_site_file_is_refused_naming_file_and_field(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        load_gpus(_site(tmp_path, text))
    assert "acme.toml" in str(caught.value)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_site_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    home = _site(tmp_path, "")
    (home / "gpus" / "acme.toml").write_bytes(b"\xff\xfe\x00[x]")
    with pytest.raises(BadInputError, match=r"acme\.toml"):
        load_gpus(home)


def test_compact_keeps_letters_digits_and_dots() -> None:
    assert compact("NVIDIA A100_3g.20GB") == "nvidiaa1003g.20gb"


def test_the_gpus_of_all_measured_rows_are_known(shared_dir: Path) -> None:
    with gzip.open(shared_dir / "data/combined/serving_rows.csv.gz", "rt") as rows:
        named = {(r["gpu"], float(r["gpu_mem_gb"])) for r in csv.DictReader(rows)}
    kinds = {NAMES.resolve(gpu, memory).kind for gpu, memory in named}
    assert len(named) == 20
    assert len(kinds) == len(named)
