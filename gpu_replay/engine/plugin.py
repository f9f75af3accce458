"""The entry point that SGLang loads in each of its processes.

Without the variable that `engine run` sets it returns at once, having imported nothing. It never
takes the server down: whatever goes wrong in here is logged, reported and counted, and switches
off what went wrong; the engine's own function has run or runs then, once.
"""

import atexit
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hisparse_sim.gpu_replay.engine.options import Options, from_environment

if TYPE_CHECKING:
    from hisparse_sim.gpu_replay.engine.releases import Release
    from hisparse_sim.gpu_replay.engine.watching import Watch

logger = logging.getLogger("hisparse_sim.engine")


def install() -> None:
    """Register the hooks if `engine run` started this server. Called by SGLang."""
    options = from_environment()
    if options is None:
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        plugin = Plugin.of_installed(options)
        for target, hook in plugin.hooks().items():
            HookRegistry.register(target, hook, HookType.AROUND)
    except Exception as error:  # of any kind: the server must start
        logger.error("hisparse-sim is off: %s", error)


class Plugin:
    """The hooks of one process, and the faults in them.

    Attributes
    ----------
    faults
        What went wrong, in order: (part, message).
    """

    def __init__(self, options: Options, release: "Release", version: str) -> None:
        self.options, self.release, self.version = options, release, version
        self.faults: list[tuple[str, str]] = []
        self.watches: WeakKeyDictionary[Any, Watch] = WeakKeyDictionary()
        self._kernel_is_on = options.kernel == "native"
        self._abandoned: list[Watch] = []  # the engine's graphs still write to what they hold
        self._watched: Any = None  # the watch whose swap-in runs, and its layer

    @classmethod
    def of_installed(cls, options: Options) -> "Plugin":
        """For the sglang that this process runs. Raises EngineError if it is not known."""
        from importlib.metadata import version
        from pathlib import Path

        import sglang

        from hisparse_sim.gpu_replay.engine.releases import check_package

        found = version("sglang")
        package = Path(next(iter(sglang.__path__)))
        return cls(options, check_package(package, found), found)

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """What wraps what: dotted name -> `hook(original, ...)`."""
        from hisparse_sim.gpu_replay.engine.releases import CLASS, COORDINATOR

        found: dict[str, Callable[..., Any]] = {}
        if self.options.counts:
            wrapped: dict[str, Callable[..., Any]] = {
                "__init__": self.make,
                "swap_in_selected_pages": self.swap_in_selected_pages,
                "alloc_device_buffer": self.alloc_device_buffer,
                "admit_request_direct": self.admit_request_direct,
                "request_finished": self.request_finished,
            }
            found |= {f"{COORDINATOR}.{CLASS}.{name}": hook for name, hook in wrapped.items()}
        if self._kernel_is_on:
            found[f"{COORDINATOR}.load_cache_to_device_buffer_mla"] = self.swap_in_kernel
            if self.release.plans:
                found[f"{COORDINATOR}.copy_cache_planned_mla"] = self.copy_kernel
        return found

    # --- around the coordinator ------------------------------------------------------------------

    def make(
        self, original: Callable[..., None], coordinator: Any, *given: Any, **named: Any
    ) -> None:
        """The coordinator has been made: watch it."""
        original(coordinator, *given, **named)
        try:
            from hisparse_sim.gpu_replay.engine.watching import Watch
            from hisparse_sim.gpu_replay.kernels.build import import_torch

            # Tensors made in inference mode could not be written to outside of it.
            with import_torch().inference_mode(False):
                watch = Watch(
                    coordinator,
                    self.release,
                    self.options,
                    self.failed,
                    self.version,
                    named.get("shared_index_layers"),
                )
            # Its thread would abort the process if it were inside torch when the interpreter ends.
            atexit.register(watch.stop)
            self.watches[coordinator] = watch
        except Exception as error:
            self.failed("counting", error)

    def swap_in_selected_pages(
        self,
        original: Callable[..., Any],
        coordinator: Any,
        req_pool_indices: Any,
        compressed_seq_lens: Any,
        top_k_result: Any,
        layer_id: int,
    ) -> Any:
        watch = self.watches.get(coordinator)
        arguments = req_pool_indices, compressed_seq_lens, top_k_result, layer_id
        self._watched = None if watch is None else (watch, layer_id)
        answer = original(coordinator, *arguments)
        self._watched = None
        if watch is not None:
            self._guard(watch.swapped_in, *arguments)
        return answer

    def alloc_device_buffer(self, original: Callable[..., Any], coordinator: Any, req: Any) -> Any:
        answer = original(coordinator, req)
        if (watch := self.watches.get(coordinator)) is not None:
            self._guard(watch.admit, req)
        return answer

    def admit_request_direct(self, original: Callable[..., Any], coordinator: Any, req: Any) -> Any:
        answer = original(coordinator, req)
        if (watch := self.watches.get(coordinator)) is not None:
            self._guard(watch.admit_direct, req)
        return answer

    def request_finished(self, original: Callable[..., Any], coordinator: Any, req: Any) -> Any:
        watch = self.watches.get(coordinator)
        row = None if watch is None else self._guard(watch.row, req)
        answer = original(coordinator, req)
        if watch is not None and row is not None:
            self._guard(watch.released, row)
        return answer

    # --- around the kernels ----------------------------------------------------------------------

    def swap_in_kernel(self, original: Callable[..., None], **named: Any) -> None:
        """Our swap-in in place of the engine's; the engine's again from the first fault on."""
        place = self._reported(named)
        if self._kernel_is_on:
            try:
                from hisparse_sim.gpu_replay.kernels.native import load_cache_to_device_buffer_mla

                # The kernel before writes the newest KV entry, or the positions; no other state.
                if named.get("miss_count") is None and place is not None:
                    load_cache_to_device_buffer_mla(**named, miss_count=place, early=True)
                else:
                    load_cache_to_device_buffer_mla(**named, early=True)
                    if place is not None:
                        place.copy_(named["miss_count"][: len(place)])
                return
            except Exception as error:
                self._kernel_is_on = False
                self.failed("kernel", error)
                self._stop_counting()  # it counted what our kernel reported
        original(**named)

    def copy_kernel(self, original: Callable[..., None], **named: Any) -> None:
        """Our copy of a plan in place of the engine's, which chooses the blocks of its own."""
        if self._kernel_is_on:
            try:
                from hisparse_sim.gpu_replay.kernels.native import copy_cache_planned_mla

                copy_cache_planned_mla(**named)
                return
            except Exception as error:
                self._kernel_is_on = False
                self.failed("kernel", error)
                self._stop_counting()
        original(**named)

    def _reported(self, named: dict[str, Any]) -> Any:
        if self._watched is None:
            return None
        watch, layer = self._watched
        place = watch.reported(layer)
        return None if place is None else place[: len(named["top_k_tokens"])]

    # --- faults ----------------------------------------------------------------------------------

    def _guard(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            self._stop_counting()
            self.failed("counting", error)
            return None

    def _stop_counting(self) -> None:
        for watch in self.watches.values():
            watch.abandon()
            self._abandoned.append(watch)
        self.watches.clear()

    def failed(self, part: str, error: Exception) -> None:
        """Log and keep a fault; the part that met it is off by now."""
        message = str(error) or type(error).__name__
        self.faults.append((part, message))
        logger.error("hisparse-sim: %s is off from here on: %s", part, message, exc_info=error)
        import os
        from pathlib import Path

        from hisparse_sim.gpu_replay.engine import events

        writer = events.EventWriter(Path(self.options.folder), os.getpid())
        if not writer.write(events.FAULT, part=part, message=message):
            logger.error("hisparse-sim: that could not be reported in %s", self.options.folder)
