"""A whole training step as one CUDA graph: captured once, then replayed in a single launch."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from adaptask.arguments import check_choice
from adaptask.errors import TrainingError
from adaptask.training.device_steps import Wait, record_event
from adaptask.training.optimizer import make_capturable
from adaptask.training.step import TrainingStep

ENGINES = ("auto", "graph", "eager")

# Steps before the capture: libraries choose their kernels, optimizers make their moments.
_WARM_UP = 3

# Replays by which the host may be ahead of the device: enough to keep it busy while the host writes
# a checkpoint. Further ahead the host would wait in the driver, which keeps a core busy and lets no
# other run be advanced.
_MOST_AHEAD = 16

_CAPTURE_STREAMS: dict[Any, Any] = {}

_PLAIN = (bool, int, float, complex, str, bytes)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_MOST_NESTED, _MOST_ITEMS = 5, 1000
_OF_MODULES = ("_buffers", "_parameters", "_modules")


class GraphEngine:
    """Runs training steps, by replaying a CUDA graph if that is possible.

    The first steps, and those after anything changed, are run eagerly. They are steps like all
    others, so that the result does not depend on the engine, except for rounding.

    Args:
        step: The step.
        engine: `eager`; `graph`, to replay or fail; `auto`, to replay if that is possible.
        report: Called with the reason if steps are not replayed.

    Raises:
        TrainingError: If `graph` is asked for and there is no CUDA device.
    """

    def __init__(
        self, step: TrainingStep, *, engine: str = "auto", report: Callable[[str], None]
    ) -> None:
        self.step = step
        self._report = report
        self._required = check_choice("engine", engine, ENGINES) == "graph"
        reason = _find_obstacle(step)
        if reason and self._required:
            raise TrainingError(f"a step cannot be captured: {reason}. Use --engine eager.")
        self._may_capture = engine != "eager" and reason is None
        if reason and engine == "auto" and step.source.device.type == "cuda":
            report(f"Steps are run eagerly, since they cannot be captured: {reason}.")
        self._graph: torch.cuda.CUDAGraph | None = None
        self._n_replays = 0
        self._last_event: Wait = None
        self._stream: Any = None
        self._n_warm, self._phase = 0, None
        self._kept: dict[str, Any] = {}

    @property
    def is_replaying(self) -> bool:
        """Whether steps are replayed."""
        return self._graph is not None

    def reset(self) -> None:
        """Discard the graph, after tensors that it uses were replaced."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
        self._n_warm = 0

    def throttle(self) -> Wait:
        """Return an event to wait for before the next step, so that the host is not too far ahead.

        Call it once before every step.
        """
        if self._graph is None:
            return None
        wait = None
        if self._n_replays % (_MOST_AHEAD // 2) == 0:
            wait, self._last_event = self._last_event, record_event(self.step.source.device)
        self._n_replays += 1
        return wait

    def __call__(self, number: int) -> None:
        """Run step number `number`, counted from 0."""
        if not self._may_capture:
            self.step(number)
            return
        phase = getattr(self.step.learner, "phase", None)
        if phase != self._phase:
            self.reset()
            self._phase = phase
        if self._graph is None:
            self._prepare(number)
        else:
            self._replay(number)

    def _prepare(self, number: int) -> None:
        """Run a step eagerly, or capture it and then replay it."""
        if self._n_warm < _WARM_UP - 1:
            self._on_side_stream(lambda: self.step(number))
            self._kept = kept_in_python(self.step)
        elif self._n_warm == _WARM_UP - 1:
            self._check_for_syncs(number)
            self._check_for_changes()
        elif self._capture():
            self._replay(number)
        else:
            self(number)
        self._n_warm += 1

    def _replay(self, number: int) -> None:
        assert self._graph is not None
        prepare = getattr(self.step.sampler, "prepare", None)
        if prepare is not None:
            prepare()
        self.step.set_number(number)
        self._graph.replay()

    def _check_for_syncs(self, number: int) -> None:
        """Run a step; give up graphs if it reads a value on the host, which a graph cannot do."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self._on_side_stream(lambda: self.step(number))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = [w for w in caught if "synchronizing CUDA operation" in str(w.message)]
        for warning in caught:
            if warning not in waits and "prototype" not in str(warning.message):
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )
        if waits:
            place = f"{waits[0].filename}, line {waits[0].lineno}"
            self._give_up(f"it waits for the device ({place})")

    def _check_for_changes(self) -> None:
        """Give up graphs if Python decides about steps, or tensors are replaced from step to step.

        A graph repeats the operations of one step on the tensors of that step.
        """
        before, self._kept = self._kept, {}
        changed = find_change(before, kept_in_python(self.step))
        if changed is not None and self._may_capture:
            self._give_up(
                f"{changed} is replaced from step to step, which a graph cannot repeat. Keep what "
                "changes in tensors on the device, and change them in place: x.add_(1), not "
                "x = x + 1."
            )

    def _capture(self) -> bool:
        """Capture the step; return whether it could be done."""
        graph = torch.cuda.CUDAGraph()
        device = self.step.source.device
        generators = [*_generators(self.step), torch.cuda.default_generators[device.index]]
        before = [generator.get_state() for generator in generators]
        for generator in generators[:-1]:
            graph.register_generator_state(generator)
        make_capturable(self.step.optimizer)
        try:
            # Other threads, such as those of nccl, may do what is not allowed in a capture.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self.step.run(beside=_capture_stream(self._stream))
        except Exception as error:  # whatever a learner or a sampler does that cannot be captured
            # They still believe that they are in a graph, and would refuse to draw.
            for generator, state in zip(generators, before, strict=True):
                fresh = torch.Generator(device)
                fresh.set_state(state)
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
            self._give_up(str(error).partition("\n")[0])
            return False
        self._graph = graph
        return True

    def _give_up(self, reason: str) -> None:
        self._may_capture = False
        if self._required:
            raise TrainingError(f"a step cannot be captured: {reason}. Use --engine eager.")
        self._report(f"Steps are run eagerly, since they cannot be captured: {reason}")

    def _on_side_stream(self, act: Callable[[], None]) -> None:
        """Run on the stream on which the graph is captured later."""
        current = torch.cuda.current_stream(self.step.source.device)
        if self._stream is None:
            self._stream = _capture_stream(current)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            act()
        current.wait_stream(self._stream)


def _capture_stream(current: Any) -> Any:
    """Return the stream on which a graph is captured that is replayed on the current stream.

    Torch hands out the same 32 streams again and again. Streams of this priority are used for
    captures only, one at a time, so that nothing that others launch can get into a graph. Graphs
    that were captured on one stream share the workspace of cuBLAS and must not run at the same
    time. They do not, since all of them are replayed on one stream. For the same reason the stream
    for what runs beside a captured one in its graph is its own: what this returns for it.
    """
    if current not in _CAPTURE_STREAMS:
        stream = torch.cuda.Stream(current.device, priority=-1)  # type: ignore[no-untyped-call]
        _CAPTURE_STREAMS[current] = stream
    return _CAPTURE_STREAMS[current]


def _find_obstacle(step: TrainingStep) -> str | None:
    """Return why the step cannot be captured, as far as that is known from the start."""
    if step.source.device.type != "cuda":
        return f"there are no graphs on {step.source.device.type}"
    if getattr(step.source, "storage", "device") == "host":
        return "the images are in host memory"
    if not step.group.is_capturable:
        return "the processes send messages through the host"
    return None


def kept_in_python(step: TrainingStep) -> dict[str, Any]:
    """Return the attributes of samplers and modules of others: values, and which tensors they are.

    Those of this package are known to leave in place what a graph needs, as tests show. Layers of
    torch are looked at where they are part of something that others wrote, which may set them.
    """
    kept: dict[str, Any] = {}
    seen: set[int] = set()
    for owner in (step.sampler, step.learner):
        parts = list(owner.named_modules()) if isinstance(owner, nn.Module) else [("", owner)]
        if all(_package_of(part) in ("adaptask", "torch") for _, part in parts):
            continue
        for path, part in parts:
            if _package_of(part) != "adaptask":
                name = f"{type(owner).__name__}.{path}".rstrip(".")
                for key, value in getattr(part, "__dict__", {}).items():
                    if key not in getattr(part, "beside_graph", ()):
                        inner = name if key in _OF_MODULES else f"{name}.{key}"
                        _add_leaves(kept, inner, value, step.source.device, seen)
    return kept


def _package_of(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _add_leaves(
    kept: dict[str, Any],
    name: str,
    value: Any,
    device: torch.device,
    seen: set[int],
    depth: int = 0,
) -> None:
    """Add a value, or all that is in it, by names such as `MySampler.counts`."""
    inside = _inside(value)
    if inside is None or depth == _MOST_NESTED or len(inside) > _MOST_ITEMS:
        kept[name] = (value, _place(value, device))
    elif id(value) not in seen:
        seen.add(id(value))
        for key, part in inside.items():
            _add_leaves(kept, f"{name}.{key}", part, device, seen, depth + 1)


def _inside(value: Any) -> dict[Any, Any] | None:
    """Return what is in a container, or the attributes of an object of others."""
    if isinstance(value, dict):
        return value
    if isinstance(value, _CONTAINERS):
        return dict(enumerate(value))
    if isinstance(value, type | ModuleType) or _package_of(value) in ("adaptask", "torch"):
        return None
    return getattr(value, "__dict__", None)


def _place(value: Any, device: torch.device) -> int:
    """Return where the numbers of a tensor are, or how often one elsewhere was changed."""
    if isinstance(value, _CONTAINERS):
        return len(value)
    if not isinstance(value, torch.Tensor):
        return 0
    try:
        # What is computed on the CPU is not part of a graph either, even in place.
        return value.data_ptr() if value.device.type == device.type else value._version
    except (RuntimeError, ValueError):  # such as sparse tensors, and those of inference mode
        return 0


def find_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return the name of something that differs between two results of `kept_in_python`."""
    for name in (*before, *after):
        if name not in before or name not in after:
            return name
        (old, old_place), (new, place) = before[name], after[name]
        are_equal = isinstance(old, _PLAIN) and isinstance(new, _PLAIN) and old == new
        if not (old is new or are_equal) or old_place != place:
            return name
    return None


def _generators(step: TrainingStep) -> list[torch.Generator]:
    """Return the generators that a step draws from; that of the device registers itself."""
    found = [
        getattr(step.sampler, "generator", None),
        getattr(step.source, "choice_generator", None),
        getattr(step.source, "augmentation_generator", None),
    ]
    unique = {id(g): g for g in found if isinstance(g, torch.Generator) and g.device.type == "cuda"}
    return list(unique.values())
