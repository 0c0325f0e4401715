"""Stopping at the end of a step: Ctrl-C, a closed terminal, the request to terminate."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

OF_TERMINAL = tuple(getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name))
"""What a terminal sends to everything in it: Ctrl-C, and that it was closed."""


class StopSignals:
    """While it is entered, the first signal to stop only sets `received`; a second acts at once.

    Outside the main thread, which signals never reach, it does nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The signal that has come, if one has."""
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        """Take over the signals."""
        if threading.current_thread() is threading.main_thread():
            for number in (*OF_TERMINAL, signal.SIGTERM):
                # What the parent process has told to ignore stays ignored; a handler that was not
                # installed from Python, None, could not be given back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        self._give_back()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


def obey(received: signal.Signals) -> NoReturn:
    """Do what a signal asks for: `KeyboardInterrupt`, or an exit with 128 + its number."""
    if received is signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + received)
