"""Pages on trainings in Airflow's web pages: an ASGI app that the API server mounts under `PREFIX`, and the
one file of browser code (``bundle.js``, made from provider/ui).

Every component of Airflow imports the plugin, so nothing is imported here before the first request.
"""

from __future__ import annotations

import threading
from typing import Any

PREFIX = "/allaboard"


class LazyApp:
    """The app, which is imported at the first request."""

    def __init__(self) -> None:
        self._app: Any = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):  # a mounted app has no lifespan of its own
            return
        if self._app is None:
            import asyncio

            self._app = await asyncio.to_thread(self._load)
        await self._app(scope, receive, send)

    def _load(self) -> Any:
        with self._lock:
            if self._app is None:
                from allaboard_provider.ui.app import build

                return build()
            return self._app
