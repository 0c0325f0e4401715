"""Seeds, and modules that own their random stream and can be restored exactly."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from adaptask.arguments import check_seed, format_value
from adaptask.errors import ArgumentError, StateError


def derive_seed(seed: int, purpose: str) -> int:
    """Return a seed for one purpose, unrelated to the seeds for other purposes.

    >>> derive_seed(0, "tasks") == derive_seed(0, "images")
    False
    """
    digest = hashlib.sha256(f"{check_seed('seed', seed)} {purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def seed_of_state(state: Tensor) -> int:
    """Return a seed that follows from the state of a generator, to start one of another kind."""
    digest = hashlib.sha256(bytes(state.cpu().numpy())).digest()
    return int.from_bytes(digest[:7], "big")


def find_device(device: torch.device | str | None) -> torch.device:
    """Return a device that torch has here, with its index: "cuda" becomes "cuda:0".

    Args:
        device: A device or its name; None is the default device.

    Raises:
        ArgumentError: If there is none of that name, or it cannot generate random numbers.
    """
    try:
        where = torch.empty(0, device=device).device
        torch.Generator(where)
    except Exception as error:  # torch raises many kinds of errors here
        raise ArgumentError(
            "device must be one that torch has here, such as 'cpu'; got "
            f"{format_value(device)} ({error})."
        ) from error
    return where


class RandomModule(nn.Module):
    """A module of buffers, without parameters, that owns its random stream.

    The stream is part of `state_dict()`: a restored module continues exactly. Moving to another
    kind of device starts a new stream, seeded from the old one, because devices generate random
    numbers differently. Converting to half precision leaves the buffers as they are.

    Args:
        seed: Seed of the random stream, at least 0.
        device: Where the buffers and the stream live.
    """

    def __init__(self, *, seed: int, device: torch.device | str | None) -> None:
        super().__init__()
        self._generator = torch.Generator(find_device(device)).manual_seed(check_seed("seed", seed))

    @property
    def generator(self) -> torch.Generator:
        """The random stream, to register with a device graph."""
        return self._generator

    @property
    def device(self) -> torch.device:
        """Where the buffers live and the draws are made."""
        return self._generator.device

    def reseed(self, seed: int) -> None:
        """Start a new random stream; everything else stays."""
        self._generator.manual_seed(check_seed("seed", seed))

    def fork(self, seed: int) -> Self:
        """Return a copy with its own random stream, to draw from without disturbing this one."""
        twin = copy.deepcopy(self)
        twin.reseed(seed)
        return twin

    def uniform_noise(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return independent uniform draws, at least 0 and below 1."""
        empty = torch.empty(shape, dtype=dtype, device=self.device)
        return empty.uniform_(generator=self._generator)

    def exponential_noise(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return independent Exp(1) draws, above 0."""
        empty = torch.empty(shape, dtype=dtype, device=self.device)
        return empty.exponential_(generator=self._generator)

    def gumbel_noise(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return independent Gumbel draws, all finite.

        `(log_weights + noise).argmax(-1)` chooses in proportion to the weights, and
        `.topk(k).indices` chooses k without replacement.
        """
        if self.device.type != "cpu":
            return self.exponential_noise(*shape, dtype=dtype).log_().neg_()
        # Torch's own exponential draws take four times as long on the CPU. Zero has no logarithm.
        empty = torch.empty(shape, dtype=dtype, device=self.device)
        uniform = empty.uniform_(1e-30, 1, generator=self._generator)
        return uniform.log_().neg_().log_().neg_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrowed = moved.is_floating_point() and moved.dtype.itemsize < 4
            return tensor.to(moved.device) if narrowed else moved

        super()._apply(keep_precision, recurse)  # type: ignore[no-untyped-call]
        target = fn(torch.empty(0, device=self.device)).device
        if target != self.device:
            seed = torch.empty((), dtype=torch.int64, device=self.device)
            seed.random_(generator=self._generator)
            self._generator = torch.Generator(target).manual_seed(int(seed))
        return self

    def __getstate__(self) -> dict[str, Any]:
        # As bytes: a tensor would be shared with a spawned process, and freed before it is read.
        state = self.__dict__.copy()
        stream = bytes(self._generator.get_state().numpy())
        state["_generator"] = (self.device.type, stream)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        kind, stream = state.pop("_generator")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # The device the buffers were loaded to, which may not be the one they were saved on.
        where = next((buffer.device for buffer in self.buffers()), torch.device(kind))
        self._generator = torch.Generator(where)
        self._take_stream(kind, torch.frombuffer(bytearray(stream), dtype=torch.uint8))

    def _identity(self) -> dict[str, Any]:
        """Return what a saved state must have in common with the module it is loaded into."""
        return {"sampler": type(self).__name__}

    def get_extra_state(self) -> dict[str, Any]:
        """Return what `state_dict()` holds besides the buffers: identity and random stream."""
        stream = {"kind": self.device.type, "state": self._generator.get_state()}
        return {**self._identity(), "generator": stream}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue the random stream of a state that has been checked."""
        self._take_stream(state["generator"]["kind"], state["generator"]["state"].cpu())

    def _take_stream(self, kind: str, stream: Tensor) -> None:
        if kind == self.device.type:
            self._generator.set_state(stream)
            return
        self._generator.manual_seed(seed_of_state(stream))
        warnings.warn(
            f"The state was saved on {kind} and is loaded on {self.device.type}, whose generators "
            "differ: everything is restored except the random stream. A new one is seeded from "
            "the saved one.",
            stacklevel=2,
        )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        *rest: Any,
    ) -> None:
        # Checked as a whole before any buffer is touched, also when a parent module loads.
        mine = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
        if not mine:
            # The model had no sampler when it was saved: torch refuses it unless strict=False.
            missing_keys += (prefix + name for name in self.state_dict())
            return
        self._check_state(mine)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, *rest
        )

    def _check_state(self, state: dict[str, Any]) -> None:
        """Refuse a state that does not fit this module, or is incomplete or damaged."""
        extra = state.get("_extra_state")
        if not isinstance(extra, dict) or "sampler" not in extra or "generator" not in extra:
            raise StateError(
                f"This is no state of a {type(self).__name__}: its '_extra_state' with the kind of "
                "sampler and the random stream is missing. Pass the result of state_dict()."
            )
        for key, expected in self._identity().items():
            found = extra.get(key)
            if type(found) is not type(expected) or found != expected:
                raise StateError(
                    f"The state was saved with {key} {format_value(found)}, this has {expected!r}. "
                    f"Build the sampler with the same {key}, or load another state."
                )
        _check_stream(extra["generator"], self.device)
        expected_buffers = {
            name: buffer
            for name, buffer in self.named_buffers()
            if name not in self._non_persistent_buffers_set
        }
        if state.keys() - {"_extra_state"} != expected_buffers.keys():
            raise StateError(
                f"The state must hold {sorted(expected_buffers)}; "
                f"got {sorted(state.keys() - {'_extra_state'})}."
            )
        for name, buffer in expected_buffers.items():
            value = state[name]
            if not _is_real(value) or value.shape != buffer.shape:
                came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise StateError(f"{name} must have the shape {tuple(buffer.shape)}; got {came}.")
            if buffer.is_floating_point() and value.dtype not in (torch.float32, torch.float64):
                raise StateError(f"{name} must be float32 or float64; got {value.dtype}.")
            if not buffer.is_floating_point() and value.dtype != buffer.dtype:
                raise StateError(f"{name} must be {buffer.dtype}; got {value.dtype}.")
        self._check_buffers({name: state[name].to(b.dtype) for name, b in expected_buffers.items()})

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        """Raise a `StateError` for values that this module could never have saved."""


def _is_real(value: object) -> bool:
    """Return whether a value is a dense tensor that has its numbers."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_quantized
    )


def _check_stream(stream: object, device: torch.device) -> None:
    """Refuse a saved random stream that cannot be continued."""
    if (
        not isinstance(stream, dict)
        or not isinstance(stream.get("kind"), str)
        or not _is_real(stream.get("state"))
        or stream["state"].dtype != torch.uint8
    ):
        raise StateError("The random stream of the state is damaged: no generator state in it.")
    if stream.get("kind") == device.type:
        try:
            torch.Generator(device).set_state(stream["state"].cpu())
        except (RuntimeError, TypeError) as error:
            raise StateError(f"The random stream of the state is damaged: {error}") from None
