"""The routes. Thin: a route reads, calls and answers."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version as version_of
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from augury.config.sampling import MAX_LOGPROBS
from augury.serve.adapters import mount_adapters, shown_path
from augury.serve.chat import chat
from augury.serve.completions import completions
from augury.serve.errors import ApiError
from augury.serve.limits import Gate
from augury.serve.messages.errors import error_response
from augury.serve.messages.routes import mount_messages
from augury.serve.openai import LONGEST_STOP, MOST_STOPS, ChatRequest, CompletionRequest
from augury.serve.reading import BodyRoute
from augury.serve.responses.routes import mount_responses
from augury.serve.service import Service
from augury.serve.static_page import mount_page
from augury.serve.stream import answer, while_connected
from augury.serve.swapping import mount_swaps
from augury.serve.tokenizing import DetokenizeRequest, TokenizeRequest
from augury.serve.writing import respond

logger = logging.getLogger("augury")
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in {
        400: "A field is wrong.",
        401: "No valid key.",
        403: "A web page of another site.",
        404: "No such model.",
        408: "The request came too slowly.",
        413: "The request is too large.",
        415: "The header does not say that the body is JSON.",
        429: "Too many at once.",
        500: "The engine failed on it.",
        503: "The engine is unavailable, or the server is shutting down.",
    }.items()
}

FORMS = {
    "stop": f"a text or a list of at most {MOST_STOPS} texts, each of at most {LONGEST_STOP} characters",
    "prompt": "a text, token ids, or a list of either",
    "input": "a text, or a list of at least one item",
    "tool_choice": "a text, or an object with a type",
    "content": "a text, or a list of parts",
    "system": "a text, or a list of text blocks",
}
# Routes of OpenAI's that are not here, and why.
NO_POOLING = "is for pooling models; this server runs one that generates text, so it has no such route."
MISSING = {f"/v1/{name}": f"/v1/{name} {NO_POOLING}" for name in ("embeddings", "rerank", "score", "classify")}
MISSING |= {
    f"/v1/{name}_lora_adapter": f"{name}_lora_adapter needs a server started with --enable-lora --lora-from DIR."
    for name in ("load", "unload")
}
ALL_OF_THEM = f"must be a number from 0 to {MAX_LOGPROBS}; -1, all of them, is not supported."  # log-probabilities
STREAMED = {200: {"description": "The answer, or its events.", "content": {"text/event-stream": {}}}, **ERRORS}


def make_app(service: Service) -> FastAPI:
    """Build the application, with its gate in front."""
    app = FastAPI(title="Augury", version=version_of("augury"), docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = BodyRoute
    _generation(app, service)
    mount_responses(app, service, STREAMED, ERRORS)
    mount_messages(app, service, STREAMED, ERRORS)
    _models(app, service)
    _tokens(app, service)
    _state(app, service)
    mount_swaps(app, service)
    mount_adapters(app, service, ERRORS)
    mount_page(app)
    _errors(app)

    def with_gate(inner: Any) -> Gate:
        service.gate = Gate(inner, service.settings.limits, service.observatory.requests.refused)
        return service.gate

    app.add_middleware(with_gate)
    app.middleware_stack = app.build_middleware_stack()  # so that the gate is there before the first request
    return app


def _generation(app: FastAPI, service: Service) -> None:
    settings = service.settings

    @app.post("/v1/completions", responses=STREAMED)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        service.receive(body, request)
        reading = completions(body, service.prompts, service.client, service.named(body.model), settings.metrics)
        return await answer(await while_connected(request.receive, reading), request)

    @app.post("/v1/chat/completions", responses=STREAMED)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        service.receive(body, request)
        name = service.named(body.model)
        reading = chat(body, service.prompts, service.client, name, settings.metrics, service.parsers)
        return await answer(await while_connected(request.receive, reading), request)


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "augury",
        "parent": service.name if name in service.adapters else None,
        "root": shown_path(service, name),
        "max_model_len": service.client.facts["max_model_len"],
    }


def _models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", responses={401: ERRORS[401]})
    async def models() -> dict[str, Any]:
        """The names of the model that is served."""
        return {
            "object": "list",
            "data": [_card(service, name) for name in (*service.settings.names, *service.adapters)],
        }

    @app.get("/v1/models/{name:path}", responses={401: ERRORS[401], 404: ERRORS[404]})
    async def model(name: str) -> dict[str, Any]:
        """The model by one of its names."""
        service.check_model(name)
        return _card(service, name)


def _tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", responses=ERRORS, response_model=dict[str, Any])
    async def tokenize(body: TokenizeRequest) -> Response:
        """Token ids of a text or a conversation."""
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "prompt or messages: give one of them.", "prompt")
        if body.prompt is not None:
            ids = await service.prompts.encode(body.prompt, body.add_special_tokens is not False, to_run=False)
        else:
            options = {"add_generation_prompt": body.add_generation_prompt is not False}
            given = (body.messages or [], body.tools, options, body.chat_template_kwargs)
            ids = await service.prompts.chat(*given, to_run=False)
        strings = {"token_strs": await service.prompts.pieces(ids)} if body.return_token_strs else {}
        shown = {"count": len(ids), "max_model_len": service.client.facts["max_model_len"], "tokens": ids, **strings}
        return await respond(lambda: shown, len(ids))

    @app.post("/detokenize", responses=ERRORS)
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        """The text of token ids."""
        service.check_model(body.model)
        service.prompts.lengths.check_detokenized(body.tokens)
        size = service.client.facts["vocab_size"]
        wrong = next((token for token in body.tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise ApiError(400, f"tokens: {wrong} is not in the vocabulary; ids go from 0 to {size - 1}.", "tokens")
        return {"prompt": await service.prompts.decode(body.tokens, to_run=False)}


def _state(app: FastAPI, service: Service) -> None:
    def health() -> Response:
        if service.healthy:
            return Response(status_code=200)
        raise ApiError(503, "the engine does not answer, or the server is shutting down.", code="unhealthy")

    said: dict[str, Any] = {"responses": {503: ERRORS[503]}, "response_class": Response}  # 200 has no body
    app.add_api_route("/health", health, methods=["GET"], **said)
    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False, **said)
    app.add_api_route("/ping", health, methods=["GET", "POST"], include_in_schema=False, **said)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of the server."""
        return {"version": version_of("augury")}

    @app.get("/load")
    async def load() -> dict[str, int]:
        """Requests being answered."""
        return {"server_load": service.gate.at_work if service.gate else 0}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(generate_latest(service.observatory.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/augury/live")
    async def live() -> dict[str, Any]:
        """Figures for the page: the last five minutes by the second, totals, and what is loaded."""
        facts, leaving = service.client.facts, bool(service.gate and service.gate.leaving)
        loaded = {name: facts[name] for name in ("method", "rule", "lossy", "num_spec_tokens", "speculative_config")}
        about = {"model": service.name, "max_model_len": facts["max_model_len"], "device": facts["device"]}
        return {**about, **loaded, "healthy": service.healthy, "leaving": leaving, **service.observatory.live.shown()}


def _unreadable(cause: BaseException | None) -> ApiError | None:
    """The error for a body that could not be read, if not for its JSON syntax; else None."""
    if isinstance(cause, ApiError):
        return cause
    if isinstance(cause, ValidationError):
        return _wrong_field(cause.errors(include_url=False, include_context=False, include_input=False)[0])
    if isinstance(cause, RecursionError):
        return ApiError(400, "the body is nested too deeply.")
    if isinstance(cause, UnicodeDecodeError):
        return ApiError(400, "the body is not text in UTF-8.")
    if isinstance(cause, ValueError):
        return ApiError(400, f"the body holds a number of more than {sys.get_int_max_str_digits()} digits.")
    return None


def _wrong_field(first: Any) -> ApiError:
    """The 400 for pydantic's first error; it stops looking there."""
    where = [str(part) for part in first["loc"] if part != "body"]
    name = where[0] if where else None
    line = f"{'.'.join(where) or 'the body'}: {first['msg'].lower()}."
    form = where[-2] if where[1:] and where[-1] == "str" else name
    if len(where) > 1 and form in FORMS:  # of several forms, the first that failed says little
        line = f"{'.'.join(where[:-1]) if form != name else name} must be {FORMS[form]}."
    elif name in ("logprobs", "top_logprobs") and first["type"].endswith("_than_equal"):
        line = f"{name} {ALL_OF_THEM}"
    return ApiError(400, line.encode("utf-8", "replace").decode(), name)


def _says_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("application/") and kind.endswith(("/json", "+json"))


def _errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def ours(request: Request, error: ApiError) -> Response:
        return error_response(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> Response:
        first, path = error.errors()[0], request.url.path
        if first["loc"] == ("body",) and first["type"] != "missing" and not _says_json(request):
            return error_response(ApiError(415, "send the header Content-Type: application/json."), path)
        if first["type"] == "json_invalid":
            why = f"the body is not JSON: {first.get('ctx', {}).get('error', '')}."
            return error_response(ApiError(400, why), path)
        return error_response(_wrong_field(first), path)

    @app.exception_handler(HTTPException)
    async def by_framework(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        told = _unreadable(error.__cause__) or ApiError(error.status_code, MISSING.get(path) or str(error.detail))
        response = error_response(told, path)
        response.headers.update(error.headers or {})  # such as which methods a route does take
        return response

    @app.exception_handler(RecursionError)
    async def too_deep(request: Request, _: RecursionError) -> Response:
        why = "the body is nested too deeply."  # read in a thread, which has more room
        return error_response(ApiError(400, why), request.url.path)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("internal server error at %s", request.url.path, exc_info=error)
        return error_response(ApiError(500, "internal server error; see the server's log."), request.url.path)
