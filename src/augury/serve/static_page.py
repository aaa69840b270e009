"""The page at `/`: static files, and the chart library out of the installed plotly package, so that nothing is fetched
from anywhere else."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from augury.serve.errors import ApiError

PAGE = Path(__file__).parent / "page"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked again each time, so that a new server never meets an old script
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def mount_page(app: FastAPI) -> None:
    """Add the page's routes."""
    charts = _chart_library()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers=HEADERS)

    @app.get("/page/vendor/plotly.min.js", include_in_schema=False)
    async def library() -> Response:
        if charts is None:
            raise ApiError(404, "plotly is not installed; pip install 'augury[serve]' brings it.")
        return FileResponse(charts, headers=HEADERS)

    app.mount("/page", _Files(directory=PAGE), name="page")


def _chart_library() -> Path | None:
    """The script inside the plotly package, which need not be imported for it."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        return None
    script = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return script if script.is_file() else None
