"""vllm.engine.async_llm_engine: answers as asynchronous streams. One thread owns the engine and steps it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from augury.compat.engine.arg_utils import EngineArgs
from augury.compat.engine.llm_engine import LLMEngine
from augury.config.sampling import SamplingParams
from augury.engine.llm import LLM, Prompt
from augury.engine.outputs import RequestOutput


class EngineDeadError(RuntimeError):
    """The engine has failed or was shut down; nothing more comes from it."""


class AsyncLLMEngine:
    """vLLM's asynchronous engine: `async for output in engine.generate(prompt, params, request_id)`."""

    def __init__(self, llm: LLM) -> None:
        self.engine = LLMEngine(llm)
        self._orders: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._streams: dict[str, Callable[[RequestOutput | BaseException], None]] = {}
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="augury-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> AsyncLLMEngine:
        """An engine with these arguments."""
        return cls(LLM(**engine_args.arguments()))

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams, request_id: str, lora_request: Any = None
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come, by the parameters' `output_kind`; leaving the loop early stops the request."""
        loop, news = asyncio.get_running_loop(), asyncio.Queue[RequestOutput | BaseException]()

        def add() -> None:
            self.engine.add_request(request_id, prompt, sampling_params, lora_request=lora_request)
            self._streams[request_id] = lambda one: loop.call_soon_threadsafe(news.put_nowait, one)  # type: ignore[assignment]

        await self._do(add)
        finished = False
        try:
            while not finished:
                output = await news.get()
                if isinstance(output, BaseException):
                    finished = True
                    raise output
                finished = output.finished
                yield output
        finally:
            if not finished and self.is_running:
                self._order(lambda: self._abort([request_id]))

    async def abort(self, request_id: str | list[str]) -> None:
        """Stop requests; their streams raise an EngineDeadError after the outputs that have come."""
        await self._do(lambda: self._abort([request_id] if isinstance(request_id, str) else list(request_id)))

    async def get_tokenizer(self) -> Any:
        """transformers' tokenizer."""
        return self.engine.get_tokenizer()

    async def check_health(self) -> None:
        """Raise if the engine is dead."""
        self._check()

    @property
    def is_running(self) -> bool:
        """Whether the engine takes requests."""
        return self._thread.is_alive() and self._failure is None

    @property
    def errored(self) -> bool:
        """Whether the engine has failed."""
        return self._failure is not None

    def shutdown(self, timeout: float | None = None) -> None:
        """End the thread; requests in flight end with an EngineDeadError."""
        self._orders.put(None)
        self._thread.join(timeout)

    def _check(self) -> None:
        if not self.is_running:
            raise EngineDeadError("the engine has stopped") from self._failure

    async def _do(self, work: Callable[[], None]) -> None:
        """Have the engine's thread do something, and wait until it has."""
        done: Future[None] = Future()

        def order() -> None:
            try:
                work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._order(order)
        await asyncio.wrap_future(done)

    def _order(self, work: Callable[[], None]) -> None:
        self._check()
        self._orders.put(work)

    # --- in the engine's thread -------------------------------------------------------------------------------------

    def _abort(self, names: list[str]) -> None:
        self.engine.abort_request(names)
        for name in names:
            if (tell := self._streams.pop(name, None)) is not None:
                tell(EngineDeadError(f"request {name!r} was aborted"))

    def _run(self) -> None:
        why: BaseException = EngineDeadError("the engine was shut down")
        try:
            while self._take():
                if self.engine.has_unfinished_requests():
                    self._publish(self.engine.step())
        except BaseException as error:  # the waiting requests must see the error
            self._failure = why = error
        for tell in self._streams.values():
            tell(why)

    def _take(self) -> bool:
        """Run the queued orders, waiting for one if there is nothing to step; False once the engine is shut down."""
        while True:
            try:
                order = self._orders.get(block=not self.engine.has_unfinished_requests())
            except queue.Empty:
                return True
            if order is None:
                return False
            order()

    def _publish(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            tell = self._streams.pop(output.request_id, None) if output.finished else self._streams[output.request_id]
            if tell is not None:
                tell(output)


AsyncLLM = AsyncLLMEngine
