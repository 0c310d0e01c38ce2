"""Tests of the built pages in headless Chromium: no dead links, nothing cut off.

``make test-docs`` builds the pages first. Without Chromium, the tests fail.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urldefrag, urlsplit

import pytest

pytestmark = pytest.mark.browser

BUILD = Path(__file__).parents[2] / "docs" / "_build"
PAGES = sorted(
    path.relative_to(BUILD).as_posix()
    for path in BUILD.rglob("*.html")
    if "_modules" not in path.parts
)
DESKTOP, PHONE = (1280, 900), (390, 844)
NEEDED = "the tests of the pages need a browser: apt-get install chromium chromium-driver"

LOOK = """
const clipped = [...document.querySelectorAll('article *')].filter(e =>
    e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1 &&
    getComputedStyle(e).overflowX != 'visible');
return {
    clipped: clipped.map(e => `${e.tagName} ${e.scrollWidth} of ${e.clientWidth} px: ` +
        e.textContent.trim().slice(0, 60)),
    beyond: document.documentElement.scrollWidth - window.innerWidth,
    broken: [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src),
    unnamed: [...document.images].filter(i => !i.alt).map(i => i.src),
    links: [...document.links].map(a => a.href),
};
"""


class Seen(NamedTuple):
    """Result of `LOOK` for a page at a width, and the messages of the browser."""

    found: dict
    said: list


@pytest.fixture(scope="module")
def browser():
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.fail(NEEDED)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Root has no sandbox, and a container little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    with webdriver.Chrome(options=options, service=Service(driver)) as opened:
        yield opened


COMPLETE = """
return location.href === arguments[0] && document.readyState === 'complete'
    && document.querySelector('footer') !== null;
"""


def open_page(browser, page):
    """Open a built page, and wait until it is complete: `get` may return before."""
    from selenium.webdriver.support.ui import WebDriverWait

    address = (BUILD / page).as_uri()
    browser.get(address)
    WebDriverWait(browser, 30).until(lambda one: one.execute_script(COMPLETE, address))


@pytest.fixture(scope="module")
def look(browser):
    seen = {}

    def at(page, size):
        if (page, size) not in seen:
            width, height = size
            device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
            open_page(browser, page)
            found = browser.execute_script(LOOK)
            said = [one["message"] for one in browser.get_log("browser")]
            seen[page, size] = Seen(found, said)
        return seen[page, size]

    return at


def test_the_pages_are_built():
    assert "index.html" in PAGES, "make docs"


@pytest.mark.parametrize("page", PAGES)
def test_everything_fits_its_column(look, page):
    assert look(page, DESKTOP).found["clipped"] == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_the_window(look, page, size):
    assert look(page, size).found["beyond"] <= 0


@pytest.mark.parametrize("page", PAGES)
def test_images_are_there_and_say_what_they_show(look, page):
    found = look(page, DESKTOP).found
    assert found["broken"] == []
    assert found["unnamed"] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_browser_complains_of_nothing(look, page):
    assert look(page, DESKTOP).said == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_what_is_there(look, page):
    for link in set(look(page, DESKTOP).found["links"]):
        address, fragment = urldefrag(link)
        if not address.startswith("file:"):
            assert address.startswith("https://"), link
            continue
        target = Path(unquote(address.removeprefix("file://")))
        assert target.is_relative_to(BUILD), link
        assert target.is_file(), link
        if fragment:
            assert unquote(fragment) in anchors(target), link


def anchors(path, known={}):  # noqa: B006 - pages do not change in between
    if path not in known:
        known[path] = set(re.findall(r'\bid="([^"]+)"', path.read_text(encoding="utf-8")))
    return known[path]


def test_the_first_page_lists_pages_for_users_without_their_sections(browser, look):
    look("index.html", DESKTOP)
    open_page(browser, "index.html")

    nested = browser.execute_script(
        "return [...document.querySelectorAll('article .toctree-wrapper')].map("
        "e => [e.querySelectorAll('li').length, e.querySelectorAll('ul ul').length])"
    )
    assert len(nested) == 3
    pages, sections = nested[0]
    assert pages > 5
    assert sections == 0


FIGURES = {"index.html": 2, "tutorial.html": 1, "own_engine.html": 2}
SMALL_PHONE = (360, 740)
TEXT = """
const shown = [...document.querySelectorAll('article .record-figure svg')].filter(
    e => e.getBoundingClientRect().width > 0);
return shown.map(e => {
    const scale = e.getBoundingClientRect().width / e.viewBox.baseVal.width;
    return [...e.querySelectorAll('text')].map(t =>
        [parseFloat(getComputedStyle(t).fontSize) * scale, getComputedStyle(t).fill]);
});
"""


@pytest.fixture
def shown(browser):
    """Text of the visible figures of a page: for each figure, its sizes in pixels and colours."""

    def at(page, size, scheme="light"):
        width, height = size
        device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        open_page(browser, page)
        return browser.execute_script(TEXT)

    yield at
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("size", [DESKTOP, SMALL_PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("page", FIGURES)
def test_each_figure_is_shown_in_one_layout_with_legible_text(shown, page, size):
    found = shown(page, size)
    assert len(found) == FIGURES[page]
    for texts in found:
        assert min(pixels for pixels, _ in texts) >= 9.95


@pytest.mark.parametrize("page", FIGURES)
def test_text_of_figures_is_dark_on_light_and_light_on_dark(shown, page):
    for scheme, is_light in (("light", False), ("dark", True)):
        for texts in shown(page, DESKTOP, scheme):
            for _, fill in texts:
                red, green, blue = (int(part) for part in re.findall(r"\d+", fill)[:3])
                assert (min(red, green, blue) > 140) is is_light, fill
                assert (max(red, green, blue) < 115) is not is_light, fill


def test_the_theme_that_a_reader_chose_wins(browser, shown):
    shown("index.html", DESKTOP, "light")
    browser.execute_script("document.body.dataset.theme = 'dark'")
    (_, fill), *_ = browser.execute_script(TEXT)[0]
    assert fill == "rgb(230, 237, 243)"


FOLDS = {
    "benchmarks.html": {"Times of all streams": 1, "Times of all shapes": 2},
    "convolution.html": {"Times of all layers": 1},
    "jax.html": {"Times of all networks": 2},
    "own_engine.html": {
        "Times of all networks": 1,
        "Times of the shapes of the benchmark": 1,
        "Times of the other shapes": 1,
    },
    "tuning.html": {"Host times of all shapes": 1},
    "verification.html": {"Runs under compute-sanitizer": 1},
    "weights.html": {"All models": 1},
}
"""Long tables: their number by the title that opens them, by page."""


@pytest.mark.parametrize("page", FOLDS)
def test_a_long_table_is_opened_by_its_title(browser, page):
    open_page(browser, page)
    folds = "return [...document.querySelectorAll('details.fold')].map(e => [e.open, "
    folds += "e.querySelector('summary').textContent, e.querySelectorAll('table').length])"
    found = browser.execute_script(folds)
    assert found == [[False, title, count] for title, count in FOLDS[page].items()]


@pytest.mark.parametrize("page", PAGES)
def test_no_open_table_has_more_than_forty_rows(browser, page):
    open_page(browser, page)
    rows = "return [...document.querySelectorAll('table:not(.indextable)')]"
    rows += ".filter(e => !e.closest('details')).map(e => e.rows.length)"
    assert [count for count in browser.execute_script(rows) if count > 40] == []


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("FAQ", "faq.html"),
        ("Windows", "faq.html"),
        ("embedding", "tutorial.html"),
        ("which function", "which_function.html"),
        ("reserve space", "glossary.html"),
    ],
)
def test_search_finds_the_page(browser, words, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get((BUILD / "search.html").as_uri() + "?q=" + quote(words))
    WebDriverWait(browser, 30).until(
        lambda shown: "finished" in shown.find_element(By.ID, "search-results").text
    )
    links = browser.find_elements(By.CSS_SELECTOR, "ul.search li a")
    browser.get_log("browser")  # summaries are fetched, which a browser refuses for files
    assert page in {Path(urlsplit(link.get_attribute("href")).path).name for link in links}
