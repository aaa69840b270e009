"""One grammar's process: it compiles the grammar, then makes masks, until the engine hangs up.

The kernel ends it when it runs over its processor time (SIGPROF), its memory (the allocator aborts) or its stack.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from typing import Any

import numpy as np

from augury.engine.grammar_limits import MESSAGE, GrammarLimits
from augury.engine.grammar_match import GrammarState, end_words
from augury.engine.grammar_source import GrammarSource, readable
from augury.engine.grammar_vocabulary import GrammarVocabulary
from augury.engine.grammar_wire import Gone, Link

MEASURED_EVERY = 64  # steps: asking the system for memory in use takes longer than many a mask


def earn(seconds: float, most: float) -> None:
    """Add to the processor time that is left, up to `most`; the process is ended when it has none."""
    left, _ = signal.setitimer(signal.ITIMER_PROF, most)
    if left + seconds < most:  # else there is no need for a second call
        signal.setitimer(signal.ITIMER_PROF, left + seconds)


class GrammarProcess:
    """One grammar's process: compiles it and answers the engine."""

    def __init__(self, link: Link, vocabulary: GrammarVocabulary, width: int, limits: GrammarLimits) -> None:
        self._link, self._vocabulary, self._width, self._limits = link, vocabulary, width, limits
        self._ends = end_words(vocabulary.tokenizer.eos_tokens, width)
        self._places: dict[int, GrammarState] = {}
        self._base, self._grown, self._steps = resident(), 0, 0

    def run(self) -> None:
        """Serve until the engine hangs up."""
        limit_memory(self._limits.memory_bytes)
        try:
            while True:
                message, _ = self._link.receive()
                if "compile" in message:
                    self._compile(GrammarSource(*message["compile"]))
                for old, new, bare in message.get("copy", ()):
                    self._places[new] = self._places[old].fork(self._ends if bare else None)
                for number in message.get("drop", ()):
                    self._places.pop(number, None)
                if "step" in message:
                    self._step(message["step"], message["burst"])
        except Gone:
            return
        except MemoryError:
            os.abort()  # as the library does when it finds no memory

    def _compile(self, source: GrammarSource) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._limits.compile_seconds)
        try:
            place = self._made(source)
            mask, error = place.mask(), place.error
        except MemoryError:
            os.abort()
        except BaseException as problem:  # a panic in the library is not an Exception
            error = " ".join(str(problem).split())[:MESSAGE] or type(problem).__name__
        signal.setitimer(signal.ITIMER_PROF, self._limits.burst_seconds)
        if error is not None:
            self._link.send({"error": error})
            return
        self._places[0] = place
        self._link.send({"bytes": self._bytes()}, mask.tobytes())

    def _made(self, source: GrammarSource) -> GrammarState:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        tokenizer, controls = self._vocabulary
        grammar = readable(source, controls)
        return GrammarState(LLMatcher(tokenizer, grammar, log_level=0, limits=limits), self._width, None)

    def _step(self, asked: list[list[Any]], burst: float) -> None:
        earn(0, burst)
        answers: list[list[Any]] = []
        masks: list[bytes] = []
        for number, read, tokens, parents in asked:
            place = self._places[number]
            ended = next((i for i, token in enumerate(read) if place.consume(token)), None)
            kept: list[int] = []
            if ended is None and tokens is not None:
                kept, words = place.look_ahead(tokens, parents, self._limits.draft_seconds)
                masks.append(np.ascontiguousarray(words).tobytes())
            earn(self._limits.token_seconds * (len(read) + len(kept) + 1), burst)
            answers.append([ended, place.error, kept])
        self._link.send({"answers": answers, "bytes": self._bytes()}, b"".join(masks))

    def _bytes(self) -> int:
        """Bytes that the process has grown by, as of a few steps ago."""
        if self._steps % MEASURED_EVERY == 0:
            self._grown = max(0, resident() - self._base)
        self._steps += 1
        return self._grown


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    return pages()[1] * resource.getpagesize()


def pages() -> list[int]:
    """Size, resident, ..., data: this process in pages, as /proc has it; zeros without it."""
    try:
        with open("/proc/self/statm") as figures:
            return [int(figure) for figure in figures.read().split()]
    except OSError:
        return [0] * 7


def limit_memory(growth: int) -> None:
    """Limit the process to `growth` bytes more than it has now."""
    size, _, _, _, _, data, _ = pages()
    if size:  # else what is in use already is not known
        for kind, now in ((resource.RLIMIT_AS, size), (resource.RLIMIT_DATA, data)):
            # An allocator reserves address space ahead; what it writes to counts as data.
            resource.setrlimit(kind, (now * resource.getpagesize() + growth,) * 2)


def serve(link: Link, vocabulary: GrammarVocabulary, width: int, limits: GrammarLimits) -> None:
    """Run a grammar's process in a thread with a stack as large as deeply nested grammars need."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(limits.stack_bytes)
    worker = threading.Thread(target=GrammarProcess(link, vocabulary, width, limits).run)
    worker.start()
    worker.join()
