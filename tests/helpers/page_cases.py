"""What tests of the page share: a server, a browser, and the page fresh in it, which must end without complaints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: pip install 'augury[dev]'")
from browser import CHROMIUM, DRIVER, Browser
from cycling import cycling_model
from served import Served, served

NEEDS_BROWSER = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium with its driver here: apt-get install chromium chromium-driver"
)
KEY = "sesame"
FLAGS = ("--served-model-name", "toy", "--api-key", KEY, "--max-concurrent-requests", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cycling_model(tmp_path_factory.mktemp("cycling"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Served]:
    with served(model, *FLAGS) as running:
        running.http.headers["Authorization"] = f"Bearer {KEY}"
        yield running


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture
def page(window: Browser, server: Served) -> Iterator[Browser]:
    """The page, fresh; in the end nothing may have been complained about, and nobody else asked."""
    window.remember(f"sessionStorage.setItem('augury.key', '{KEY}')")
    window.open(server.url)
    yield window
    assert window.complaints() == []
    assert window.hosts() <= {f"127.0.0.1:{server.port}", ""}
