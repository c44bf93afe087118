from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog import Catalog
from omnipilot.domain.errors import BadInputError
from omnipilot.settings import VALID_KEYS, Settings, default_home

CATALOG = Catalog.load()
DEFAULTS = Settings.load()


def _home(folder: Path, text: str) -> Path:
    (folder / "settings.toml").write_text(text, encoding="utf-8")
    return folder


def test_the_defaults_are_those_of_the_design() -> None:
    assert DEFAULTS.value_usd_per_token == 2e-7
    assert (DEFAULTS.kv_knee_frac, DEFAULTS.kv_floor_frac) == (0.85, 0.5)
    assert (DEFAULTS.launch_success_prob, DEFAULTS.lost_setup_h) == (0.95, 0.1)
    assert (DEFAULTS.pue, DEFAULTS.electricity_usd_per_kwh) == (1.3, 0.12)
    assert DEFAULTS.carbon_price_usd_per_kg == 0.0
    assert DEFAULTS.gpu_kinds == (
        "a100-40", "a100-80", "h100-80", "h200-141", "b200-180", "l40s-48", "rtxpro6000-96",
        "mi300x-192",
    )  # fmt: skip


def test_the_defaults_name_only_kinds_of_the_catalogue() -> None:
    DEFAULTS.check_kinds(gpu.kind for gpu in CATALOG.gpus())


def test_every_bundled_kind_has_a_listed_price_and_a_node() -> None:
    for gpu in CATALOG.gpus():
        assert not DEFAULTS.price_is_estimated(gpu), gpu.kind
        assert 0 < DEFAULTS.price_usd_per_gpu_h(gpu) < 10
        assert DEFAULTS.gpus_per_node(gpu) >= 1


def test_the_anchor_bandwidths_are_those_of_the_catalogue() -> None:
    for kind, bandwidth in DEFAULTS.price_anchors.items():
        assert bandwidth == pytest.approx(CATALOG.gpu(kind).bandwidth_bytes_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "usd"),
    [
        ("a100-40", 1.5),
        ("h100-80", 3.0),
        ("b200-180", 5.5),
        ("h100-80.mig-3g.40gb", 1.5),  # half of 3.0
        ("a100-40.mig-1g.5gb", 0.1875),  # an eighth of 1.5
        ("h100-80-pcie.mig-7g.80gb", 2.5),
        ("a30-24.mig-2g.12gb", 0.35),
    ],
)
def test_a_gpu_hour_has_its_price(kind: str, usd: float) -> None:
    assert DEFAULTS.price_usd_per_gpu_h(CATALOG.gpu(kind)) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("bandwidth", "usd"), [(0.1e12, 0.35), (1.6e12, 1.5), (3.2e12, 3.0), (20e12, 5.5)]
)
def test_an_unlisted_kind_is_priced_by_the_nearest_bandwidth_and_flagged(
    bandwidth: float, usd: float
) -> None:
    gpu = replace(CATALOG.gpu("h100-80"), kind="acme-64", bandwidth_bytes_per_s=bandwidth)
    assert DEFAULTS.price_usd_per_gpu_h(gpu) == usd
    assert DEFAULTS.price_is_estimated(gpu)


def test_nodes_hold_eight_baseboard_gpus_four_cards_and_one_slice() -> None:
    per_node = {g.kind: DEFAULTS.gpus_per_node(g) for g in CATALOG.gpus()}
    assert per_node["h100-80"] == per_node["mi300x-192"] == per_node["b200-180"] == 8
    assert per_node["h100-80-pcie"] == per_node["gh200-96"] == per_node["rtx4090-24"] == 4
    assert per_node["h100-80.mig-7g.80gb"] == 1


def test_a_site_overrides_key_by_key(tmp_path: Path) -> None:
    home = _home(
        tmp_path,
        "pue = 1.1\n[price_usd_per_gpu_h]\nh100-80 = 2.0\nacme-64 = 9.0\n"
        "[gpus_per_node]\nh100-80 = 4\n",
    )
    site = Settings.load(home)
    h100 = CATALOG.gpu("h100-80")
    assert site.pue == 1.1
    assert site.electricity_usd_per_kwh == DEFAULTS.electricity_usd_per_kwh
    assert site.price_usd_per_gpu_h(h100) == 2.0
    assert site.price_usd_per_gpu_h(CATALOG.gpu("h100-80.mig-3g.40gb")) == 1.0
    assert site.price_usd_per_gpu_h(CATALOG.gpu("a100-40")) == 1.5
    assert site.price_usd_per_gpu_h(replace(h100, kind="acme-64")) == 9.0
    assert site.gpus_per_node(h100) == 4
    with pytest.raises(BadInputError, match="no GPU kind 'acme-64'"):
        site.check_kinds(g.kind for g in CATALOG.gpus())


def test_added_kinds_count_until_the_site_lists_its_kinds_itself(tmp_path: Path) -> None:
    assert DEFAULTS.site_gpu_kinds(("acme-64",)) == (*DEFAULTS.gpu_kinds, "acme-64")
    assert DEFAULTS.site_gpu_kinds(("h100-80",)) == DEFAULTS.gpu_kinds
    chosen = Settings.load(_home(tmp_path, 'gpu_kinds = ["t4-16"]\n'))
    assert chosen.site_gpu_kinds(("acme-64",)) == ("t4-16",)


def test_a_misspelt_kind_in_the_settings_is_refused_with_a_close_one(tmp_path: Path) -> None:
    site = Settings.load(_home(tmp_path, 'gpu_kinds = ["h100-81"]\n'))
    with pytest.raises(BadInputError, match="did you mean h100-80"):
        site.check_kinds(g.kind for g in CATALOG.gpus())


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert Settings.load(tmp_path) == DEFAULTS
    assert Settings.load(_home(tmp_path, "")) == DEFAULTS


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("pue = 1.3\npu = 1\n", 2, "unknown setting 'pu', did you mean pue"),
        ("\n\npue = 'low'\n", 3, "pue must be a number from 1 to 5, got 'low'"),
        ("pue = true\n", 1, "pue must be a number"),
        ("pue = nan\n", 1, "pue must be a number"),
        ("pue = 0.5\n", 1, "pue must be a number from 1 to 5"),
        ("gpu_kinds = 'h100-80'\n", 1, "must be a list"),
        ("gpu_kinds = []\n", 1, "must be a list"),
        ("gpus_per_node = 8\n", 1, "must be a table headed by [gpus_per_node]"),
        ("[gpus_per_node]\nh100-80 = 4.5\n", 2, "whole number"),
        ("[gpus_per_node]\nh100-80 = 0\n", 2, "from 1 to 1024"),
        ("[gpus_per_node]\nt4-16 = 2\n[price_usd_per_gpu_h]\nt4-16 = -1\n", 4, "from 0"),
        ("[prices]\nh100-80 = 4\n", 1, "unknown setting 'prices'"),
        ("pue = 1.3\npue = \n", 2, "TOML"),
    ],
)
def test_a_bad_settings_file_is_refused_naming_file_line_and_key(
    tmp_path: Path, text: str, line: int, told: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        Settings.load(_home(tmp_path, text))
    message = str(caught.value)
    assert "settings.toml" in message
    assert f"line {line}" in message
    assert told in message
    assert "\n" not in message


def test_an_unknown_setting_is_refused_with_the_valid_list(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        Settings.load(_home(tmp_path, "colour = 1\n"))
    assert all(key in str(caught.value) for key in VALID_KEYS)


def test_a_settings_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInputError, match=r"settings\.toml"):
        Settings.load(tmp_path)


def test_an_anchor_needs_a_price(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="needs a price"):
        Settings.load(_home(tmp_path, "[price_anchors]\nacme-64 = 1e12\n"))


@given(st.sampled_from([g.kind for g in CATALOG.gpus() if g.is_mig]))
def test_a_slice_never_costs_more_than_its_part(kind: str) -> None:
    gpu = CATALOG.gpu(kind)
    part = CATALOG.gpu(gpu.parent)
    assert DEFAULTS.price_usd_per_gpu_h(gpu) <= DEFAULTS.price_usd_per_gpu_h(part)


def test_the_home_folder_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMNIPILOT_HOME", str(tmp_path / "site"))
    assert default_home() == tmp_path / "site"
    monkeypatch.delenv("OMNIPILOT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_home() == tmp_path / "omnipilot"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_home() == Path.home() / ".local/share/omnipilot"


def test_readings_age_by_the_windows_of_the_paper() -> None:
    day_s = 86_400
    assert dict(DEFAULTS.freshness_s) == {
        "gpus_free": 60, "queue": 60, "node_health": 600, "power": 3600, "activity": 3600,
        "launch_success": 30 * day_s, "queue_wait": 7 * day_s,
        "runs": 365 * day_s,
    }  # fmt: skip


def test_a_site_sets_one_window_and_a_misspelt_metric_is_refused(tmp_path: Path) -> None:
    settings = Settings.load(_home(tmp_path, "[freshness_s]\nqueue = 30\n"))
    assert (settings.freshness_s["queue"], settings.freshness_s["power"]) == (30, 3600)
    with pytest.raises(BadInputError, match=r"line 2: no 'queu' in freshness_s, did you mean que"):
        Settings.load(_home(tmp_path, "[freshness_s]\nqueu = 30\n"))
    with pytest.raises(BadInputError, match=r"freshness_s\.queue must be a number from 1"):
        Settings.load(_home(tmp_path, "[freshness_s]\nqueue = 0\n"))


def test_a_launch_outcome_of_a_state_that_slurm_does_not_have_is_refused(tmp_path: Path) -> None:
    settings = Settings.load(_home(tmp_path, '[launch_outcomes]\nTIMEOUT = "failure"\n'))
    assert settings.launch_outcomes["TIMEOUT"] == "failure"
    for wrong in ("TIMOUT", "timeout"):
        with pytest.raises(BadInputError, match=f"line 2: no '{wrong}' .*did you mean TIMEOUT"):
            Settings.load(_home(tmp_path, f'[launch_outcomes]\n{wrong} = "failure"\n'))
