"""The least that any policy, or any prefetcher, could do: bounds that need the future.

docs/semantics-bounds.md proves that each is a bound.
"""

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulator.study.reuse import WINDOW, Counts, Reuse
from hisparse_sim.traces.machine_code import compiled

Floats = npt.NDArray[np.float64]


def least_misses(
    reuse: Reuse, *, free_newest: bool = False, best_start: bool = False
) -> npt.NDArray[np.int32]:
    """Return the misses of every step, [n], of a schedule with the fewest in all.

    Without options it is MIN (Belady). `free_newest`: the newest token, which is on the GPU, may
    take a slot when the next one comes, without a copy. `best_start`: the buffer starts with the
    positions that are best, of all that there are then.
    """
    misses = np.zeros(reuse.steps, np.int32)
    if reuse.steps:
        held = best_content(reuse, 0) if best_start else reuse.resident
        _replay(reuse, held, 0, free_newest, misses)
    return misses


def best_content(reuse: Reuse, window: int) -> Counts:
    """Return the best content of the buffer at the start of a window, by next step, [n + 1]."""
    below = np.cumsum(reuse.known[window])
    most = np.minimum(below, reuse.buffer_size)
    content: Counts = np.diff(most, prepend=0).astype(np.int32)
    return content


def window_misses(reuse: Reuse) -> npt.NDArray[np.int64]:
    """Return the least misses from step i * WINDOW to step j, both included, whatever the buffer
    holds before: [n / WINDOW, n]; 0 where the second is before the first.

    The first line is of the buffer as it starts. Contents that are best for one end are best for
    all, and so is MIN.
    """
    found = np.zeros((len(reuse.known), reuse.steps), np.int32)
    for window in range(len(found)):
        held = reuse.resident if window == 0 else best_content(reuse, window)
        _replay(reuse, held, window * WINDOW, False, found[window])
    return np.cumsum(found, axis=1, dtype=np.int64)


def least_exposed(windows: npt.NDArray[np.int64], hidden: float) -> float:
    """Return a lower bound of the misses that a step waits for, summed over all steps, if the link
    may copy `hidden` entries before each step and everything is known ahead.

    `windows` [w, n] as of `window_misses`. In a window of m steps at least `windows` entries are
    copied, and at most m * `hidden` of them wait for nobody. Windows that do not overlap add up;
    the best choice of windows is found.
    """
    if windows.size == 0:
        return 0.0
    length = 1 + np.arange(windows.shape[1])[None, :] - WINDOW * np.arange(len(windows))[:, None]
    return best_windows(np.where(length > 0, windows - hidden * length, 0.0))


@compiled
def best_windows(gain: Floats) -> float:
    """Return the largest sum of gains of windows that do not overlap: `gain` [w, n] of the window
    from step i * WINDOW to step j."""
    windows, steps = gain.shape
    best = np.zeros(steps + 1)  # of the first so many steps
    for step in range(steps):
        most = best[step]
        for window in range(min(windows, step // WINDOW + 1)):
            most = max(most, best[window * WINDOW] + gain[window, step])
        best[step + 1] = most
    return float(best[steps])


@compiled
def _replay(reuse: Reuse, content: Counts, begin: int, free_newest: bool, misses: Counts) -> None:
    """Write the misses of MIN from step `begin` on, with a buffer that holds `content` before."""
    never = len(reuse.accessed)
    held = content.copy()  # [n + 1] positions in the buffer by the step of their next access
    size = held.sum()
    for step in range(begin, never):
        demanded = reuse.accessed[step]
        misses[step] = demanded - held[step]
        size += demanded - held[step]
        held[step] = 0
        farthest = never
        while size > reuse.buffer_size:
            while held[farthest] == 0:
                farthest -= 1
            gone = min(held[farthest], size - reuse.buffer_size)
            held[farthest] -= gone
            size -= gone
        for following in range(step + 1, never + 1):
            held[following] += reuse.again[step, following]
        if free_newest and reuse.newest[step] >= 0:
            held[reuse.newest[step]] += 1
            size += 1
            if size > reuse.buffer_size:
                farthest = never
                while held[farthest] == 0:
                    farthest -= 1
                held[farthest] -= 1
                size -= 1
