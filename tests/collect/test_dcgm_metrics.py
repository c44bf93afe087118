"""The table of DCGM metrics agrees with the tables of labels and events."""

from __future__ import annotations

from omnipilot.collect.dcgm_metrics import FAULTS, GAUGES, METRICS
from omnipilot.domain.gpu_health import GPU_EVENTS, SEVERITIES, xid_severity
from omnipilot.domain.labels import GPU_LABELS
from omnipilot.store.join import METRIC_OF_LABEL


def test_every_gauge_gives_declared_labels_and_every_label_has_a_gauge() -> None:
    given = {gauge.label for gauge in GAUGES} | {gauge.peak for gauge in GAUGES if gauge.peak}
    assert given == {label.name for label in GPU_LABELS}


def test_every_fault_is_a_declared_event_and_every_event_has_a_metric() -> None:
    assert {fault.event for fault in FAULTS} == {event.name for event in GPU_EVENTS}
    assert {event.severity for event in GPU_EVENTS} <= {"", *SEVERITIES}
    assert {xid_severity(number) for number in range(200)} == set(SEVERITIES)


def test_names_are_unique_and_of_dcgm() -> None:
    assert len(set(METRICS)) == len(METRICS)
    assert all(name.startswith("DCGM_FI_") for name in METRICS[:-1])


def test_power_ages_by_its_own_window() -> None:
    assert METRIC_OF_LABEL["power_mean_w"] == "power"
