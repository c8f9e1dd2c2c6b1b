"""A trace of some training steps, for TensorBoard or Perfetto."""

import pathlib
import threading

import jax

# JAX traces a whole process, so of several runs at once one is traced.
_TRACING = threading.Lock()


class Profiler:
    """Traces the steps `first` to `last` (both included) of one run.

    Args:
        span: (first, last), or None to do nothing.
        folder: where the trace goes.
    """

    def __init__(self, span: tuple[int, int] | None, folder: pathlib.Path):
        self._span = span
        self._folder = folder
        self._is_tracing = False

    @property
    def stops(self) -> tuple[int, ...]:
        """Step counts between which chunks have to end."""
        return () if self._span is None else (self._span[0] - 1, self._span[1])

    def at(self, step: int) -> None:
        """Called between chunks, with the number of finished steps."""
        if self._span is None:
            return
        first, last = self._span
        if step == first - 1 and _TRACING.acquire(blocking=False):
            try:
                jax.profiler.start_trace(str(self._folder))
            except BaseException:
                _TRACING.release()
                raise
            self._is_tracing = True
        elif step >= last:
            self.close()

    def close(self) -> None:
        """Ends the trace if one is under way."""
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()
            _TRACING.release()
