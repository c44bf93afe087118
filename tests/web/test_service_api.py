"""The addresses of the API with a stand-in cost model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from served_site import ASK, ROWS, Site, make_site

from omnipilot.advisor import Advisor
from omnipilot.domain import TARGET_NAMES
from omnipilot.web.endpoints import ENDPOINTS
from omnipilot.web.limits import Limits
from omnipilot.web.schemas import IngestAnswer, ProbeAnswer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "home")


def problem(answer: Any, status: int, slug: str) -> dict[str, Any]:
    """A refusal in the form of RFC 9457; the document."""
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["type"] == f"urn:omnipilot:problem:{slug}"
    assert document["status"] == status
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


def test_advice_over_http_is_the_advice_of_the_advisor(site: Site) -> None:
    answer = site.client.post("/v1/advise", json=ASK).json()
    ranked = answer["ranked"]
    assert answer["model_version"] == "stand-in"
    assert answer["abstention"] is None
    assert tuple(ranked[0]["targets"]) == TARGET_NAMES
    totals = [arm["utility"]["total_usd"] for arm in ranked]
    assert totals == sorted(totals, reverse=True)
    assert (answer["request"]["prompt_tokens"], answer["request"]["output_tokens"]) == (3072, 1024)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422), (b"null", 422), (b"[1]", 422), (b'{"model": 1}', 422), (b"{", 400),
        (b"\xff", 400), (b'{"model": "x", "concurrency": "8", "context_tokens": 1.5, "m": 1}', 422),
        (b'{"model": "x", "concurrency": NaN, "context_tokens": -1}', 422),
    ],
)  # fmt: skip
def test_advice_refuses_what_the_framework_refuses_elsewhere(
    site: Site, body: bytes, status: int
) -> None:
    headers = {"content-type": "application/json"}
    found = []
    for path in ("/v1/advise", "/v1/explain"):
        answer = site.client.post(path, content=body, headers=headers)
        document = problem(answer, status, "invalid" if status == 422 else "bad-request")
        found.append((document.get("errors"), document["detail"] if status == 422 else ""))
    assert found[0] == found[1]


def test_every_request_has_an_id_of_its_own(site: Site) -> None:
    ids = [site.client.get("/health").headers["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(len(i) == 32 and int(i, 16) for i in ids)


def test_the_operator_s_wishes_reach_the_advisor(site: Site) -> None:
    wishes = {
        "gpus": ["H200"], "precisions": ["fp8"], "hours": 3, "slo_ttft_ms": 500,
        "profile": "latency-first", "weights": {"carbon": 2}, "value_per_token_usd": 1e-6,
        "electricity_usd_per_kwh": 0.5, "wait_cost_usd_per_h": 4, "slo_penalty_usd_per_h": 9,
    }  # fmt: skip
    answer = site.client.post("/v1/explain", json=ASK | wishes).json()
    arms = {(a["arm"]["gpu_kind"], a["arm"]["precision"]) for a in answer["ranked"]}
    assert arms == {("h200-141", "fp8")}
    assert answer["request"]["slo"]["ttft_p50_s"] == 0.5
    economics = answer["economics"]
    assert economics["duration_h"] == 3
    assert economics["value_per_token_usd"] == 1e-6
    assert economics["electricity_usd_per_kwh"] == 0.5
    assert economics["wait_cost_usd_per_h"] == 4
    assert economics["slo_penalty_usd_per_h"] == 9
    assert answer["weights"]["carbon"] == 2
    assert answer["weights"]["slo"] == 10


def test_an_abstention_is_an_answer_with_the_axis_and_the_rule_s_arm(tmp_path: Path) -> None:
    site = make_site(tmp_path, measured=set())
    answer = site.client.post("/v1/advise", json=ASK)
    assert answer.status_code == 200
    abstention = answer.json()["abstention"]
    assert abstention["violations"]
    assert abstention["fallback"]["gpu_kind"]
    assert site.service.metrics.value("omnipilot_abstention_axes_total", "GPU kind") >= 1


def test_as_many_arms_are_told_as_are_wanted(site: Site) -> None:
    everything = site.client.post("/v1/advise", json=ASK).json()
    few = site.client.post("/v1/advise", json=ASK | {"top": 3}).json()
    assert few["ranked"] == everything["ranked"][:3]
    assert few["infeasible"] == everything["infeasible"]


def test_the_same_question_is_worked_out_once(site: Site) -> None:
    model = site.service.keeper.current.advisor.model
    first = site.client.post("/v1/advise", json=ASK).content
    asked = len(model.asked)  # type: ignore[attr-defined]
    assert site.client.post("/v1/advise", json=ASK).content == first
    assert len(model.asked) == asked  # type: ignore[attr-defined]
    site.client.post("/v1/advise", json=ASK | {"concurrency": 201})
    assert len(model.asked) > asked  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "status", "slug"),
    [
        ({"model": "no/such-model"}, 404, "unknown-name"),
        ({"gpus": ["warp-core"]}, 404, "unknown-name"),
        ({"gpus": ["A100"]}, 409, "ambiguous-name"),
        ({"profile": "lavish"}, 404, "unknown-name"),
        ({"weights": {"luck": 1}}, 404, "unknown-name"),
        ({"concurrency": 0}, 422, "invalid"),
        ({"concurrency": "200"}, 422, "invalid"),
        ({"hours": -1}, 422, "invalid"),
        ({"prompt_tokens": 4000, "output_tokens": 4000}, 422, "invalid"),
        ({"surprise": 1}, 422, "invalid"),
        ({"model": "a\u0000b"}, 422, "invalid"),
    ],
)
def test_what_cannot_be_answered_is_a_problem_that_says_what_to_do(
    change: dict[str, Any], status: int, slug: str, site: Site
) -> None:
    document = problem(site.client.post("/v1/advise", json=ASK | change), status, slug)
    assert document["detail"]
    if slug == "ambiguous-name":
        assert len(document["candidates"]) > 1


def test_a_body_that_is_no_json_is_a_bad_request(site: Site) -> None:
    answer = site.client.post(
        "/v1/advise", content=b"{", headers={"content-type": "application/json"}
    )
    problem(answer, 400, "bad-request")


def test_another_media_type_is_refused(site: Site) -> None:
    problem(site.client.post("/v1/advise", content=b"a=1"), 415, "unsupported-media-type")


def test_addresses_and_methods_that_do_not_exist_are_problems_too(site: Site) -> None:
    problem(site.client.get("/v1/nothing"), 404, "not-found")
    problem(site.client.delete("/v1/models"), 405, "method-not-allowed")


def test_fits_says_which_number_decides(site: Site) -> None:
    launch = {"model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": "h100-80"}
    assert site.client.post("/v1/fits", json=launch).json()["verdict"] == "oom"


def test_rows_are_predicted_alike_from_json_and_csv(site: Site) -> None:
    row = {
        "model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "H100", "n_gpus": 1, "precision": "bf16",
        "isl": 512, "osl": 128, "concurrency": 8,
    }  # fmt: skip
    strange = row | {"model": 'no "such, model\nat all'}
    by_json = site.client.post("/v1/predict", json={"rows": [row, row | {"gpu": "x"}]}).json()
    text = "\n".join([",".join(row), *(",".join(map(str, r.values())) for r in (row, row))])
    by_csv = site.client.post(
        "/v1/predict", content=text, headers={"content-type": "text/csv"}
    ).json()
    assert by_json["rows"][0] == by_csv["rows"][0]
    assert by_json["rows"][0]["verdict"] == "fits"
    assert by_json["rows"][1]["verdict"] == "unknown"
    assert by_json["rows"][1]["targets"]["ttft_p50_s"]["q50"] is None
    problem(site.client.post("/v1/predict", json={"rows": [strange]}), 422, "invalid")


def test_a_file_without_the_columns_is_refused_without_a_path(site: Site) -> None:
    answer = site.client.post("/v1/predict", content="a\n1\n", headers={"content-type": "text/csv"})
    document = problem(answer, 422, "invalid")
    assert "/" not in document["detail"].replace("and/or", "")


def test_rows_need_the_write_scope(site: Site) -> None:
    headers = {"content-type": "text/csv"}
    problem(site.client.post("/v1/rows", content=ROWS, headers=headers), 401, "unauthenticated")
    reader = site.token("reader", "read")
    answer = site.client.post("/v1/rows", content=ROWS, headers=headers | reader)
    problem(answer, 403, "forbidden")
    assert site.client.get("/v1/rows").json()["rows"] == 0


def test_rows_are_taken_in_once(site: Site) -> None:
    headers = {"content-type": "text/csv"} | site.token("writer", "read", "write")
    first = site.client.post("/v1/rows", content=ROWS, headers=headers).json()
    again = site.client.post("/v1/rows", content=ROWS, headers=headers).json()
    assert (first["accepted"], first["duplicate"]) == (1, 0)
    assert (again["accepted"], again["duplicate"]) == (0, 1)
    assert site.client.get("/v1/rows").json()["rows"] == 1
    assert site.service.metrics.value("omnipilot_rows_ingested_total", "accepted") == 1


def test_bad_rows_are_counted_with_their_reason_and_a_bad_file_is_refused(site: Site) -> None:
    headers = {"content-type": "text/csv"} | site.token("writer", "read", "write")
    bad = ROWS + "our_site,Qwen/Qwen2.5-7B-Instruct,vllm,H100,many,bf16,512,128,8,4200,ok\n"
    report = site.client.post("/v1/rows", content=bad, headers=headers).json()
    assert (report["accepted"], report["rejected"]) == (1, 1)
    answer = site.client.post("/v1/rows", content="nothing", headers=headers)
    problem(answer, 422, "invalid")


def test_more_rows_than_are_taken_at_a_time_are_refused_and_none_is_kept(tmp_path: Path) -> None:
    site = make_site(tmp_path, limits=Limits(rows=2))
    headers = {"content-type": "text/csv"} | site.token("writer", "write")
    head, row = ROWS.splitlines()
    many = "\n".join([head, *(row.replace("4200", str(4200 + i)) for i in range(4))])
    problem(site.client.post("/v1/rows", content=many, headers=headers), 413, "too-large")
    assert site.client.get("/v1/rows").json()["rows"] == 0


def test_columns_and_names_that_no_fit_can_use_are_told(site: Site) -> None:
    headers = {"content-type": "text/csv"} | site.token("writer", "write")
    head, row = ROWS.splitlines()
    odd = row.replace("H100", "H1000").replace("bf16", "bf61")
    report = site.client.post(
        "/v1/rows", content=f"{head},colour\n{odd},red\n", headers=headers
    ).json()
    assert report["accepted"] == 1
    assert report["unread_columns"] == ["colour"]
    assert {(n["column"], n["name"], n["rows"]) for n in report["unknown_names"]} == {
        ("gpu", "H1000", 1), ("precision", "bf61", 1),
    }  # fmt: skip


def test_the_examples_of_rows_are_taken_in(site: Site) -> None:
    writer = site.token("writer", "write")
    endpoint = next(e for e in ENDPOINTS if (e.method, e.path) == ("POST", "/v1/rows"))
    for media_type, example in endpoint.examples.items():
        content = example if isinstance(example, str) else json.dumps(example)
        headers = {"content-type": media_type} | writer
        report = site.client.post("/v1/rows", content=content, headers=headers).json()
        assert (report["accepted"], report["rejected"]) == (1, 0), media_type
        IngestAnswer.model_validate(report)


def test_every_reading_address_answers_on_a_fresh_machine(site: Site) -> None:
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            answer = site.client.get(endpoint.path)
            assert answer.status_code == 200, endpoint.path
    for endpoint in ENDPOINTS:
        example = endpoint.examples.get("application/json")
        if example is None:
            continue
        if endpoint.method == "POST" and endpoint.scope == "read" and "probe" not in endpoint.path:
            assert site.client.post(endpoint.path, json=example).status_code == 200


def test_every_answer_has_the_form_that_the_document_promises(site: Site) -> None:
    for endpoint in ENDPOINTS:
        if endpoint.answer is None:
            continue
        if endpoint.method == "GET":
            content = site.client.get(endpoint.path).content
        elif "probe" in endpoint.path:
            continue
        elif endpoint.scope == "read":
            example = endpoint.examples["application/json"]
            content = site.client.post(endpoint.path, json=example).content
        else:
            headers = {"content-type": "text/csv"} | site.token("w", "write")
            content = site.client.post(endpoint.path, content=ROWS, headers=headers).content
        endpoint.answer.model_validate_json(content)


def test_the_openapi_document_has_an_example_of_every_body_and_all_refusals(site: Site) -> None:
    document = site.client.get("/openapi.json").json()
    for endpoint in ENDPOINTS:
        operation = document["paths"][endpoint.path][endpoint.method.lower()]
        assert operation["summary"]
        if endpoint.scope is not None:
            assert "401" in operation["responses"]
        for media_type in endpoint.examples:
            assert "example" in operation["requestBody"]["content"][media_type]
        for status, answer in operation["responses"].items():
            if not status.startswith("2"):
                assert list(answer["content"]) == ["application/problem+json"]


def test_advice_over_http_says_as_which_release_a_later_one_is_answered(site: Site) -> None:
    later = site.client.post("/v1/advise", json=ASK | {"engine_version": "99.0.0"}).json()
    assert any("newest known release" in line for line in later["assumptions"])


def test_probes_are_valued_from_the_shipped_model(tmp_path: Path) -> None:
    shipped = make_site(tmp_path, open_advisor=Advisor)
    body = ASK | {"hours": 24, "concurrency": 1000, "gpus": ["h100-80", "h200-141"]}
    answer = shipped.client.post("/v1/probe", json=body)
    assert answer.status_code == 200
    found = ProbeAnswer.model_validate_json(answer.content)
    assert found.decision_after_expected.net_utility_usd >= found.decision_before.utility_usd
    assert found.stop_reason
    page = shipped.client.get(
        "/probe", params={k: str(v) for k, v in ASK.items()} | {"hours": "24", "budget": "1.5"}
    )
    assert page.status_code == 200
    assert "omnipilot probe --model" in page.text
    assert "--budget-node-h 1.5 --run" in page.text


def test_what_a_damaged_folder_held_before_goes_on_answering(tmp_path: Path) -> None:
    shipped = make_site(tmp_path, open_advisor=Advisor.open)
    (tmp_path / "gpus").mkdir()
    for name in ("settings.toml", "gpus/own.toml"):
        (tmp_path / name).write_text("no = toml = at all", encoding="utf-8")
    assert not shipped.service.keeper.look()
    body = ASK | {"gpus": ["h100-80"], "precisions": ["bf16"], "depth": 1}
    assert shipped.client.post("/v1/probe", json=body).status_code == 200
    headers = {"content-type": "text/csv"} | shipped.token("writer", "write")
    assert shipped.client.post("/v1/rows", content=ROWS, headers=headers).json()["accepted"] == 1


def test_a_page_that_is_refused_says_the_id_of_its_request(site: Site) -> None:
    page = site.client.get("/compare?model=no/such&concurrency=1&context_tokens=64")
    assert page.status_code == 404
    assert f"Request {page.headers['x-request-id']}." in page.text


def test_a_model_that_cannot_value_probes_says_so(site: Site) -> None:
    problem(site.client.post("/v1/probe", json=ASK), 422, "invalid")


def test_a_job_script_is_reviewed_in_lines_of_text(site: Site) -> None:
    script = (
        "#!/bin/bash\n#SBATCH --gres=gpu:h100-80:4\n#OMNIPILOT concurrency=8 context=4096\n"
        "vllm serve Qwen/Qwen2.5-7B-Instruct -tp 2\n"
    )
    headers = {"content-type": "text/plain"}
    answer = site.client.post("/v1/review", content=script, headers=headers)
    assert answer.headers["content-type"].startswith("text/plain")
    first, second, third = answer.text.splitlines()
    assert first.startswith("the job asks for 4 GPUs and vLLM will use 2")
    assert "starts on 2x h100-80" in second
    assert "at 8 requests at once" in third
    other = site.client.post("/v1/review", content="#!/bin/bash\nsleep 1\n", headers=headers)
    assert (other.status_code, other.text) == (200, "")


def test_a_request_id_is_taken_over_or_made(site: Site) -> None:
    said = site.client.get("/health", headers={"x-request-id": "abc-123"})
    assert said.headers["x-request-id"] == "abc-123"
    odd = site.client.get("/health", headers={"x-request-id": 'a"b c'})
    assert odd.headers["x-request-id"] != 'a"b c'


def test_metrics_count_requests_by_route_and_advice_by_outcome(site: Site) -> None:
    site.client.post("/v1/advise", json=ASK)
    site.client.get("/v1/nothing/at/all")
    page = site.client.get("/metrics").text
    assert 'omnipilot_requests_total{route="/v1/advise",method="POST",status="200"} 1' in page
    assert 'omnipilot_requests_total{route="unknown",method="GET",status="404"} 1' in page
    assert 'omnipilot_advice_total{outcome="recommended"' in page
    assert 'omnipilot_model_info{version="stand-in",origin="base"} 1' in page
    assert 'omnipilot_request_seconds_bucket{route="/v1/advise",le="+Inf"} 1' in page


def test_the_log_tells_the_route_and_never_what_was_asked_or_by_which_token(site: Site) -> None:
    headers = site.token("dashboard", "read")
    secret = headers["authorization"].removeprefix("Bearer ")
    site.client.post("/v1/advise", json=ASK, headers=headers)
    site.client.get("/v1/models?token=" + secret, headers=headers)
    line = next(x for x in site.lines() if x.get("route") == "/v1/advise")
    assert (line["status"], line["caller"]) == (200, "dashboard")
    assert line["took_ms"] > 0
    assert secret not in site.log.getvalue()
    assert str(ASK["model"]) not in site.log.getvalue()


def test_a_bug_is_a_problem_with_a_request_id_and_its_place_in_the_log(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the value hunter2 is secret")

    monkeypatch.setattr(type(site.service), "advice_json", broken)
    document = problem(site.client.post("/v1/advise", json=ASK), 500, "internal")
    assert "hunter2" not in str(document)
    failure = next(x for x in site.lines() if x["event"] == "request failed")
    assert failure["request_id"] == document["request_id"]
    assert failure["error"] == "RuntimeError"
    assert "hunter2" not in site.log.getvalue()
