"""The report in a real browser: drawing, sorting, pointer and keyboard, and no script from the data."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import pocketbayes as pb

selenium = pytest.importorskip("selenium", reason="no selenium to drive a browser with: pip install selenium")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

Change = Callable[[Path, Any], None]
BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver", "chromium.chromedriver")
ATTACK = "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
SECTIONS = ["overview", "calibration", "ood", "shift", "images", "training", "weights", "plane", "recipes"]
PATIENCE = 10.0


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Return headless Chromium, or skip the test with the reason."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    if program is None or driver is None:
        pytest.skip("no browser: install Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    quiet = ["no-first-run", "disable-background-networking", "disable-component-update", "disable-sync"]
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,1000", *quiet):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def page(
    runs_dir: Path, tmp_path_factory: pytest.TempPathFactory, browser: webdriver.Chrome, change: Change
) -> Iterator[webdriver.Chrome]:
    """Return the report of two runs, one of them with scripts in every text."""
    folder = tmp_path_factory.mktemp("browser")
    shutil.copytree(runs_dir, folder / "runs")

    def plant(document: dict[str, Any]) -> None:
        document |= {"method": ATTACK, "data": {"name": ATTACK}, "split": ATTACK, "model": ATTACK}
        document["box"][ATTACK] = document["box"].pop(next(iter(document["box"])))
        document["ood"][ATTACK] = document["ood"]["noise"]
        document["shift"]["corruptions"][ATTACK] = document["shift"]["corruptions"]["fog"]
        document["images"][ATTACK] = document["images"]["least certain"]

    change(folder / "runs" / "sparse", plant)
    recipe = folder / "runs" / "sparse" / "recipe.yaml"
    recipe.write_text(f"about: {json.dumps(ATTACK)}\n{recipe.read_text()}")
    shutil.move(folder / "runs" / "sparse", folder / "runs" / "<img src=x onerror=alert(3)>")
    browser.get(pb.report(folder / "runs", folder / "report.html").as_uri())
    yield browser
    for section in SECTIONS:
        open_section(browser, section)
    assert console(browser) == []


def console(browser: webdriver.Chrome) -> list[Any]:
    """Return the page's console errors since the last call."""
    found: list[Any] = browser.get_log("browser")
    return found


def open_section(browser: webdriver.Chrome, name: str) -> Any:
    browser.find_element(By.ID, f"tab-{name}").click()
    return browser.find_element(By.ID, name)


def eventually(test: Callable[[], Any]) -> Any:
    """Wait until the test is true and return its result."""
    start = time.monotonic()
    while not (found := test()) and time.monotonic() - start < PATIENCE:
        time.sleep(0.02)
    assert found
    return found


def test_report_draws_every_part(page: webdriver.Chrome) -> None:
    tabs = page.find_elements(By.CSS_SELECTOR, "[role=tab]")
    assert [tab.get_attribute("aria-controls") for tab in tabs] == SECTIONS
    for name in SECTIONS:
        panel = open_section(page, name)
        assert panel.is_displayed()
        assert "could not be drawn" not in panel.text
        assert len(panel.text) > 50
        shown = [section for section in SECTIONS if page.find_element(By.ID, section).is_displayed()]
        assert shown == [name]
    for name in ("calibration", "ood", "shift", "training"):
        assert open_section(page, name).find_elements(By.CSS_SELECTOR, "svg .line, svg rect")
    assert console(page) == []


def test_report_page_runs_no_planted_scripts(page: webdriver.Chrome) -> None:
    for name in SECTIONS:
        open_section(page, name)
    assert page.title.startswith("pocketbayes")
    assert page.find_elements(By.CSS_SELECTOR, "img[onerror], main script") == []
    assert "</script><script>" in open_section(page, "recipes").text


EVERYWHERE = (
    "</script><script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 2'>",
    "\"'><svg onload='window.ran = 3'></svg>",
    "javascript:window.ran = 4",
)


def planted(node: Any, attack: str, depth: int = 0) -> Any:
    """Return the values with the attack in every text and in one key of every nested mapping."""
    if isinstance(node, dict):
        found = {key: planted(value, attack, depth + 1) for key, value in node.items() if key != "png"}
        first = next(iter(found), None)
        extra = {attack + str(first): found[first]} if depth and first is not None else {}
        return {**found, **extra, **{key: node[key] for key in ("png", "format") if key in node}}
    if isinstance(node, list):
        return [planted(item, attack, depth + 1) for item in node]
    return node + attack if isinstance(node, str) else node


@pytest.mark.parametrize("attack", EVERYWHERE)
def test_report_runs_no_planted_script(
    attack: str, runs_dir: Path, tmp_path: Path, browser: webdriver.Chrome, change: Change
) -> None:
    """Class names, file names and recipe values, with the page's script policy removed."""
    folder = tmp_path / attack.replace("/", "\N{DIVISION SLASH}")
    shutil.copytree(runs_dir / "shared", folder)
    change(folder, lambda document: document.update(planted(document, attack)))
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    (folder / "recipe.yaml").write_text(yaml.safe_dump(planted({"about": "", **recipe}, attack)))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(planted(row, attack)) + "\n" for row in rows))
    page = pb.report([folder, runs_dir / "sparse"], tmp_path / "report.html")
    text, found = re.subn(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page.read_text())
    assert found == 1
    page.write_text(text)
    here = browser.current_url
    browser.get(page.as_uri())
    for tab in browser.find_elements(By.CSS_SELECTOR, "[role=tab]"):
        tab.click()
    assert browser.execute_script("return window.ran") is None
    assert browser.find_elements(By.CSS_SELECTOR, "[onerror], [onload], main script, [href^='javascript:']") == []
    assert attack in browser.find_element(By.TAG_NAME, "main").get_attribute("textContent")
    browser.get_log("browser")
    browser.get(here)


def test_report_heading_sorts_by_click_and_key(page: webdriver.Chrome) -> None:
    open_section(page, "overview")
    button = page.find_element(By.XPATH, "//table[@id='leaderboard']//button[text()='NLL']")
    head = button.find_element(By.XPATH, "..")
    assert head.get_attribute("aria-sort") == "none"
    rows = page.execute_script("return report.leaderboard.rows.map((row) => [runs[row.run].name, row.values.nll])")
    rising = [name for name, _ in sorted(rows, key=lambda row: row[1])]

    def order() -> list[str]:
        cells = page.find_elements(By.CSS_SELECTOR, "#leaderboard tbody tr")
        return [page.execute_script("return runs[arguments[0].dataset.run].name", cell) for cell in cells]

    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert order() == rising
    button.send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "descending"
    assert order() == rising[::-1]
    assert "NLL" in page.find_element(By.ID, "live").get_attribute("textContent")


def test_report_tabs_follow_the_arrow_keys(page: webdriver.Chrome) -> None:
    open_section(page, "overview")
    page.find_element(By.ID, "tab-overview").send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("id") == "tab-calibration"
    assert page.find_element(By.ID, "calibration").is_displayed()
    page.switch_to.active_element.send_keys(Keys.END)
    assert page.switch_to.active_element.get_attribute("aria-selected") == "true"
    assert page.find_element(By.ID, "recipes").is_displayed()
    assert page.current_url.endswith("#recipes")


def test_report_chart_shows_values_under_the_pointer(page: webdriver.Chrome) -> None:
    panel = open_section(page, "calibration")
    figure = panel.find_element(By.CSS_SELECTOR, "figure svg[role=img]")
    tip = page.find_element(By.ID, "tip")
    ActionChains(page).move_to_element(figure).perform()
    eventually(tip.is_displayed)
    assert "confidence" in tip.text
    figure.send_keys(Keys.ARROW_RIGHT)
    assert "accuracy" in page.find_element(By.ID, "live").get_attribute("textContent")


def test_report_plane_gaussian_lists_its_members(page: webdriver.Chrome) -> None:
    panel = open_section(page, "plane")
    place = "report.runs.find((run) => run.weights.plane).weights.plane"
    first = panel.find_element(By.CSS_SELECTOR, ".gaussian[data-place='0'] .centre")
    centre = page.execute_script(
        "const box = arguments[0].getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]",
        first,
    )
    top = page.execute_script(
        "return document.elementFromPoint(...arguments[0]).closest('.gaussian').dataset.place", centre
    )
    chain = ActionChains(page)
    chain.w3c_actions.pointer_action.move_to_location(*map(round, centre))
    chain.perform()
    members = panel.find_element(By.CSS_SELECTOR, ".members")
    eventually(lambda: f"Gaussian {int(top) + 1}" in members.text)
    layers = page.execute_script(f"const p = {place}; return p.layers.filter((_, i) => p.members[{top}][i] > 0)")
    assert all(layer in members.text for layer in layers)
    assert page.find_element(By.ID, "tip").is_displayed()


def test_report_plane_zooms(page: webdriver.Chrome) -> None:
    panel = open_section(page, "plane")

    def width() -> float:
        shape = panel.find_element(By.CSS_SELECTOR, ".gaussian[data-place='0'] .one")
        found: float = page.execute_script("return arguments[0].getBoundingClientRect().width", shape)
        return found

    before = width()
    panel.find_element(By.CSS_SELECTOR, "[aria-label='Zoom in']").click()
    assert width() == pytest.approx(1.5 * before, rel=0.1)
    panel.find_element(By.CSS_SELECTOR, ".plane svg").send_keys("0")
    assert width() == pytest.approx(before, rel=0.01)


def test_report_run_can_be_switched_off(page: webdriver.Chrome) -> None:
    panel = open_section(page, "calibration")
    charts = len(panel.find_elements(By.CSS_SELECTOR, "figure.small"))
    chip = page.find_element(By.CSS_SELECTOR, ".chip")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert len(panel.find_elements(By.CSS_SELECTOR, "figure.small")) == charts / 2
    chip.click()
    assert len(panel.find_elements(By.CSS_SELECTOR, "figure.small")) == charts


def test_report_is_light_and_dark(page: webdriver.Chrome) -> None:
    def paper() -> str:
        found: str = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        return found

    button = page.find_element(By.ID, "theme")
    seen = {}
    for _ in range(3):
        seen[button.text] = paper()
        button.click()
    assert set(seen) == {"Theme: system", "Theme: light", "Theme: dark"}
    assert seen["Theme: dark"] != seen["Theme: light"]


def test_report_fits_a_phone(page: webdriver.Chrome) -> None:
    size = {"width": 360, "height": 700, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for name in SECTIONS:
            open_section(page, name)
            assert page.execute_script("return document.documentElement.scrollWidth") <= 360, name
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_report_names_of_runs_stay_readable_on_a_phone(page: webdriver.Chrome) -> None:
    size = {"width": 400, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_section(page, "overview")
        name = page.find_element("css selector", "#leaderboard tbody td")
        assert name.rect["width"] > 100  # a column as narrow as a letter would break after each
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [1280, 400])
def test_report_section_opens_at_its_start(page: webdriver.Chrome, width: int) -> None:
    """A link to a section, or a tab clicked far down the page, shows the heading right below the header."""
    size = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    place = "return document.getElementById(arguments[0]).firstChild.getBoundingClientRect().top"
    try:
        open_section(page, "calibration")
        page.execute_script("scrollTo(0, 600); document.getElementById('tab-weights').click()")
        header = page.execute_script("return document.querySelector('.top').getBoundingClientRect().bottom")
        eventually(lambda: header <= page.execute_script(place, "weights") < header + 200)
        page.execute_script("scrollTo(0, 600); location.hash = 'calibration'")
        eventually(lambda: header <= page.execute_script(place, "calibration") < header + 200)
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_report_prints_everything(page: webdriver.Chrome) -> None:
    """Printing also draws the parts that were never opened."""
    page.refresh()
    page.print_page()
    for name in SECTIONS:
        assert page.execute_script(f"return document.getElementById('{name}').children.length"), name


def test_report_wrong_values_break_their_own_part_only(
    runs_dir: Path, tmp_path: Path, browser: webdriver.Chrome, change: Change
) -> None:
    shutil.copytree(runs_dir / "shared", tmp_path / "shared")

    def spoil(document: dict[str, Any]) -> None:
        document |= {
            "reliability": {"confidence": 3},
            "risk_coverage": [],
            "box": {"a": ["b"] * 6},
            "temperature": "hot",
        }
        document["ood"]["noise"]["histogram"] = {"edges": "none"}
        document["shift"] = {"corruptions": {"fog": 7}, "rotation": "round", "noise": [{"db": "loud"}]}

    change(tmp_path / "shared", spoil)
    here = browser.current_url
    browser.get(pb.report(tmp_path / "shared", tmp_path / "report.html").as_uri())
    for tab in browser.find_elements(By.CSS_SELECTOR, "[role=tab]"):
        tab.click()
    assert "could not be drawn" in browser.find_element(By.ID, "calibration").get_attribute("textContent")
    assert open_section(browser, "plane").find_elements(By.CSS_SELECTOR, ".gaussian")
    assert console(browser) == []
    browser.get(here)
