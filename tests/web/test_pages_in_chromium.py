"""The pages in a real browser: each task that a person has, by mouse, keyboard and phone."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
import uvicorn
from served_site import ROWS, Site, make_site

from omnipilot.web.app import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("no chromium on this machine", allow_module_level=True)
ARGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
AXE = Path(__file__).with_name("vendor") / "axe.min.js"
ASKED = "model=Qwen%2FQwen2.5-7B-Instruct&concurrency=200&context_tokens=4096"
SHOTS = os.environ.get("OMNIPILOT_SHOTS", "")
Scheme = Literal["light", "dark"]
PAGES = {
    "ask": f"/?{ASKED}", "empty": "/", "compare": f"/compare?{ASKED}",
    "what-if": f"/what-if?{ASKED}&quantity=ttft_p50_s&slo_ttft_ms=1000",
    "evidence": f"/evidence?{ASKED}", "script": f"/script?{ASKED}&arm=h100-80:2:bf16",
    "cluster": "/cluster", "models": "/models", "api": "/api",
    "wrong": "/?model=no%2Fsuch&concurrency=x&context_tokens=4096",
}  # fmt: skip


def serve(site: Site) -> tuple[uvicorn.Server, threading.Thread, str]:
    config = uvicorn.Config(make_app(site.service), port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    return server, thread, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    """A service that knows every GPU kind."""
    site = make_site(tmp_path_factory.mktemp("known"))
    server, thread, url = serve(site)
    yield site, url
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def ignorant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that was never measured on anything."""
    site = make_site(tmp_path_factory.mktemp("ignorant"), measured=set())
    server, thread, url = serve(site)
    yield url
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield found
        found.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page; afterwards no console error and no request to elsewhere may have been seen."""
    contexts: list[Any] = []
    faults: list[str] = []

    def go(url: str, *, width: int = 1280, scheme: Scheme = "light", **more: Any) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **more
        )  # fmt: skip
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        home = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda r: None if r.url.startswith((home, "data:")) else faults.append(r.url),
        )
        page.goto(url)
        return page

    yield go
    for context in contexts:
        context.close()
    # Chromium writes the status of a refused page to the console; that is no fault of the page.
    assert [f for f in faults if "the server responded with a status of 4" not in f] == []


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def query(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_a_person_asks_and_is_told_what_to_take(
    known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    page = opened(known[1])
    page.get_by_label("Model").fill("Qwen/Qwen2.5-7B-Instruct")
    page.get_by_label("Concurrent requests").fill("200")
    page.get_by_label("Context").fill("4096")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name="Take ").wait_for()
    page.get_by_role("heading", name="Ranked").wait_for()
    assert page.locator("table.ranked tbody tr").count() == 12
    assert page.locator("table.waterfall tbody tr").count() == 8
    page.get_by_role("heading", name="Cannot start").wait_for()
    assert set(query(page)) == {"model", "concurrency", "context_tokens"}
    shot(page, "task-ask")


def test_a_slider_refines_the_answer_without_a_reload(
    known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    page = opened(f"{known[1]}/?{ASKED}")
    before = page.locator(".figures").inner_text()
    page.get_by_text("What counts").click()
    page.evaluate("window.here = true")
    slider = page.get_by_label("Value of a token, slider")
    slider.focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**value_per_token_usd=**")
    page.locator("#results:not([aria-busy])").wait_for()
    assert page.locator(".figures").inner_text() != before
    assert page.evaluate("window.here") is True
    assert page.evaluate("document.activeElement.className") == "slider"
    assert float(query(page)["value_per_token_usd"][0]) > 2e-7
    assert page.locator("#status").inner_text().startswith("Take ")
    page.reload()
    assert page.get_by_label("Value of a token USD", exact=True).input_value()


def test_another_arm_is_looked_at_and_compared(
    known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    page = opened(f"{known[1]}/?{ASKED}")
    second = page.locator("table.ranked tbody tr").nth(1).get_by_role("link")
    name = second.inner_text()
    second.click()
    page.get_by_role("heading", name=f"Looking at {name}").wait_for()
    page.get_by_role("main").get_by_role("link", name="Compare").click()
    first = page.get_by_label("First").input_value()
    assert first == query(page)["a"][0]
    page.get_by_label("Second").select_option(index=4)
    page.wait_for_url("**/compare?*b=*")
    headings = page.locator("table.versus").first.locator("thead th").all_inner_texts()
    assert headings[1] == name
    assert headings[2] == page.get_by_label("Second").evaluate(
        "e => e.selectedOptions[0].text.replace(/^\\d+\\. /, '')"
    )
    shot(page, "task-compare")


def test_a_job_script_is_copied(known: tuple[Site, str], opened: Callable[..., Page]) -> None:
    page = opened(
        f"{known[1]}/?{ASKED}&precisions=bf16", permissions=["clipboard-read", "clipboard-write"]
    )
    page.get_by_role("button", name="Copy link").click()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_role("link", name="Job script").click()
    page.get_by_role("button", name="Copy script").click()
    page.get_by_text("Copied").first.wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=omnipilot-vllm-")
    page.get_by_role("button", name="Copy command").click()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("omnipilot launch --model Qwen/Qwen2.5-7B-Instruct")
    assert command.endswith("--submit")


def test_the_load_is_varied(known: tuple[Site, str], opened: Callable[..., Page]) -> None:
    page = opened(f"{known[1]}{PAGES['what-if']}")
    chart = page.locator(".wide svg.chart")
    chart.wait_for()
    assert chart.locator(".limit").count() == 1
    assert chart.locator(".here").count() == 1
    page.get_by_label("Quantity").select_option("power_mean_w")
    page.wait_for_url("**quantity=power_mean_w**")
    page.get_by_role("heading", name="Power, watts").wait_for()
    assert page.locator("tr.chosen").inner_text().startswith("200")


def test_an_abstention_leads_to_the_axis_and_the_probe(
    ignorant: str, opened: Callable[..., Page]
) -> None:
    page = opened(f"{ignorant}/?{ASKED}")
    page.get_by_role("heading", name="No recommendation").wait_for()
    assert "was never measured" in page.locator(".banner").inner_text()
    assert page.locator("#probe").inner_text().startswith("What would let it know:")
    page.get_by_role("link", name="Job script of the probe").click()
    assert page.get_by_label("run a benchmark").is_checked()
    assert "--num-prompts" in page.locator("#script").inner_text()
    shot(page, "task-probe")


def test_a_shared_link_opens_the_same_answer(
    known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    one = opened(f"{known[1]}/?{ASKED}&slo_ttft_ms=800&profile=latency-first&gpus=h100-80")
    other = opened(one.url, width=390, scheme="dark")
    assert one.locator(".figures").inner_text() == other.locator(".figures").inner_text()
    other.get_by_text("Change the request").click()
    assert other.get_by_label("Time to first token").input_value() == "800"
    assert other.get_by_label("Operating point").input_value() == "latency-first"


def test_the_keyboard_alone_suffices(known: tuple[Site, str], opened: Callable[..., Page]) -> None:
    page = opened(known[1])

    def tab_to(label: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            said = page.evaluate(
                "(e => (e.labels && e.labels[0] ? e.labels[0].textContent : e.textContent))"
                "(document.activeElement).trim()"
            )
            if f"{said} ".startswith(f"{label} "):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", label
                return
        raise AssertionError(f"{label} is not reached by Tab")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab_to("Model")
    page.keyboard.type("Qwen/Qwen2.5-7B-Instruct")
    tab_to("Concurrent requests")
    page.keyboard.type("200")
    tab_to("Context")
    page.keyboard.type("4096")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Take ").wait_for()
    tab_to("What if the load changes")
    page.keyboard.press("Enter")
    page.wait_for_url("**/what-if?**")
    tab_to("Quantity")
    page.keyboard.press("ArrowDown")
    page.wait_for_url("**quantity=**")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_a_phone(
    name: str, known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    page = opened(known[1] + PAGES[name], width=390, scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shot(page, f"{name}-390-dark")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_fault_of_accessibility(
    name: str, width: int, scheme: str, known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    page = opened(known[1] + PAGES[name], width=width, scheme=scheme)
    for summary in page.locator("details:not([open]) > summary").all():
        if summary.is_visible():
            summary.click()
    shot(page, f"{name}-{width}-{scheme}")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [
        (v["id"], v["impact"], [n["html"][:160] for n in v["nodes"][:4]])
        for v in found["violations"]
    ] == []


def test_the_abstention_s_page_has_no_fault_of_accessibility(
    ignorant: str, opened: Callable[..., Page]
) -> None:
    page = opened(f"{ignorant}/?{ASKED}")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [(v["id"], v["nodes"][0]["html"][:160]) for v in found["violations"]] == []


def test_a_stored_script_in_a_name_is_shown_as_text(
    known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    site, url = known
    evil = "<script>window.owned=1</script><img src=x onerror=window.owned=1>"
    headers = {"content-type": "text/csv"} | site.token("evil", "read", "write")
    rows = ROWS + ROWS.splitlines()[1].replace("our_site", '"' + evil + '"') + "\n"
    assert site.client.post("/v1/rows", content=rows, headers=headers).json()["accepted"] >= 1
    page = opened(f"{url}/?model={evil}&concurrency=1&context_tokens=100&gpus={evil}")
    assert page.get_by_label("Model").input_value() == evil
    assert "<script>window.owned" in page.locator(".banner").inner_text()
    for path in ("/", f"/?{ASKED}", f"/script?{ASKED}&checkpoint={evil}&image={evil}", "/models"):
        page.goto(url + path)
        assert page.evaluate("window.owned") is None


def test_pages_work_without_scripts(known: tuple[Site, str], opened: Callable[..., Page]) -> None:
    page = opened(known[1], java_script_enabled=False)
    page.get_by_label("Model").fill("Qwen/Qwen2.5-7B-Instruct")
    page.get_by_label("Concurrent requests").fill("200")
    page.get_by_label("Context").fill("4096")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name="Take ").wait_for()
    assert page.get_by_role("button", name="Copy link").count() == 0


def test_wrong_input_is_told_at_its_field(
    known: tuple[Site, str], opened: Callable[..., Page]
) -> None:
    page = opened(known[1] + PAGES["wrong"])
    field = page.get_by_label("Concurrent requests")
    assert field.get_attribute("aria-invalid") == "true"
    told = page.locator(f"#{field.get_attribute('aria-describedby')}")
    assert "'x' is not a number" in told.inner_text()
