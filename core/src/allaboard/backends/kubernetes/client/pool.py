"""Runs blocking operations for an event loop, in a bounded number of threads of its own.

The default threads of a loop are everybody's (files, name look-ups), and a process that ends waits for them;
for these it does not wait. An operation has a deadline, which counts from the moment that it is asked for:
what still waits for a thread by then is never begun, and what runs gets no more answers (`deadline`). So an
API server that does not answer holds no thread longer than that.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from allaboard.backends.kubernetes.client.deadline import ends_at
from allaboard.backends.kubernetes.client.process import PROCESS

T = TypeVar("T")


@dataclass(slots=True)
class _Call:
    do: Callable[[], Any]
    deadline: float
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class ThreadPool:
    """``most``: threads that there are at most; each is made when it is needed first, and stays."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0

    async def run(self, seconds: float, do: Callable[[], T]) -> T:
        """The result of ``do``, or its exception. Raises TimeoutError after ``seconds``. A caller that is
        cancelled is so at once; an operation that has begun ends by itself.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        timer = loop.call_later(seconds, _tell, answer, None, TimeoutError())
        self._calls.put(_Call(do, time.monotonic() + seconds, loop, answer))
        self._add_thread()
        try:
            return await answer
        finally:
            timer.cancel()

    def _add_thread(self) -> None:
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._threads == self.most:
                return
            self._threads += 1
            name = f"{self.name}-{self._threads}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:  # no room for another thread: those that are there do it
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    raise

    def _serve(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                self._idle.release()
                call = self._calls.get()
            _carry_out(call)
            del call  # what it holds must not live until the next one comes


def _carry_out(call: _Call) -> None:
    if call.answer.done():
        return  # nobody waits for it any more
    result, error = None, None
    try:
        with ends_at(call.deadline):
            result = call.do()
    except BaseException as raised:
        error = raised
    with suppress(RuntimeError):  # its loop has been closed
        call.loop.call_soon_threadsafe(_tell, call.answer, result, error)


def _tell(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def pool_of(key: Hashable, name: str, most: int) -> ThreadPool:
    """The pool of this process under this key."""
    # Threads do not survive a fork.
    return PROCESS.get(ThreadPool, (os.getpid(), name, key), lambda: ThreadPool(name, most))
