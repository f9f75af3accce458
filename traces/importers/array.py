"""A plain array of positions: `.npy`, `.npz` or `.pt`, (steps, layers, top_k) or (steps, top_k).

Row r is decode step r, the query at position `prompt_len + r`; -1 is padding. An array that begins
with rows of the prompt is recognised by what these list, unless `first_position` says where it
begins. Nothing in such a file is ever executed: NumPy refuses pickles, torch loads tensors only.
"""

import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.units import positions_of, tokens_of
from hisparse_sim.traces.importers.importer import Imported, Importer, Options, write_scratch
from hisparse_sim.traces.importers.prompt_rows import ROWS_READ, sign_of_prompt
from hisparse_sim.traces.importers.returned import Returned, imported
from hisparse_sim.traces.terminal import printable

_ZIP = b"PK\x03\x04"
_LARGEST_RATIO = 100  # positions of a real trace shrink to a tenth at best

_REMEDY = "check `prompt_len`, and `first_position` if row 0 is not the first decode step"


def open_npy(path: Path, place: str) -> Any:
    """Map a `.npy` file of integers, (rows, layers, top_k), into memory, read-only."""
    with _reading(f"{place} cannot be read as .npy"):
        with path.open("rb") as file:
            if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
                raise TraceError(f"{place} is not a .npy file")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        # A header that says less than there is would lose rows without a word.
        more = path.stat().st_size - getattr(array, "offset", 0) - array.nbytes
        if more > 0:
            raise TraceError(
                f"{place} holds {more} bytes more than the array of shape {array.shape} in its "
                f"header: the file is damaged, or holds several arrays; save it again"
            )
        return shaped(array, place)


def shaped(array: Any, place: str) -> Any:
    """Return the array as (rows, layers, top_k), or raise TraceError."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise TraceError(f"{place} holds {getattr(array, 'dtype', 'no array')}, expected integers")
    if array.ndim == 2:
        array = array[:, None, :]
    if array.ndim != 3 or 0 in array.shape:
        raise TraceError(
            f"{place} has the shape {array.shape}, expected (steps, layers, top_k) or "
            f"(steps, top_k)"
        )
    return array


def _open_npz(path: Path, scratch: Path) -> Any:
    # Unpacked to disk and mapped: an array may be larger than the memory.
    unpacked = scratch / "unpacked.npy"
    with _reading(f"{path} cannot be read as .npz"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) != 1:
            names = ", ".join(member.filename for member in members[:10])
            raise TraceError(f"{path} holds {len(members)} arrays ({names}), expected one")
        _refuse_bomb(path, members)
        with archive.open(members[0]) as source, unpacked.open("wb", buffering=0) as target:
            while piece := source.read(1 << 20):
                write_scratch(target, piece)
    return open_npy(unpacked, str(path))


def _open_pt(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise TraceError(
            f"{path} needs torch to be read: install torch, or save the tensor as .npy"
        ) from None
    with _reading(f"{path} cannot be read as tensors only, and nothing else in it is loaded"):
        with path.open("rb") as file:
            zipped = file.read(len(_ZIP)) == _ZIP  # as torch tells it
        if zipped:
            with zipfile.ZipFile(path) as archive:
                _refuse_bomb(path, archive.infolist())
                damaged = archive.testzip()  # torch does not look at the checksums
            if damaged is not None:
                raise TraceError(
                    f"{path} is damaged (the checksum of {damaged!r} in it is wrong), or was saved "
                    f"without checksums (torch.serialization.set_crc32_options): save it again"
                )
        # Tensors and plain containers only; anything else that a pickle could do is refused.
        found = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(found, dict) and len(found) == 1:
            found = next(iter(found.values()))
        if not isinstance(found, torch.Tensor):
            kind = f"{len(found)} entries" if isinstance(found, dict) else type(found).__name__
            raise TraceError(f"{path} holds {kind}, expected one tensor")
        if found.nbytes > found.untyped_storage().nbytes():
            raise TraceError(f"{path} holds a view that repeats its numbers: save a copy of it")
        return found.numpy()


def _refuse_bomb(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    packed = sum(member.compress_size for member in members)
    size = sum(member.file_size for member in members)
    if size > _LARGEST_RATIO * max(packed, 1 << 16):
        raise TraceError(
            f"{path} would expand from {packed} to {size} bytes, which no real trace does"
        )


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Damaged archives, headers and pickles raise whatever they like, or warn of Python 2."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TraceError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise TraceError(f"{what}: {said}") from None


def _read(path: Path, options: Options) -> Imported:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        array = open_npy(path, str(path))
    elif suffix == ".npz":
        array = _open_npz(path, options.scratch)
    elif suffix in (".pt", ".pth"):
        array = shaped(_open_pt(path), str(path))
    else:
        raise TraceError(f"{path} is neither .npy, .npz nor .pt")
    if options.prompt_len is None:
        raise TraceError(f"{path} does not say how long the prompt was: give `prompt_len`")
    first = options.first_position
    doubts: tuple[str, ...] = ()
    if_short = _REMEDY
    if first is None:
        first = options.prompt_len
        doubts = _doubts(path, array, first, options.unit)
        if_short = (
            "if the array begins with rows of the prompt, say by `first_position` at which position"
        )
    name = printable(path.stem)
    found = [Returned(name, options.prompt_len, first, array.shape, lambda: array)]
    read = imported(path, found, options, remedy=_REMEDY, if_short=if_short, counted=False)
    return replace(read, doubts=doubts + read.doubts)


def _doubts(path: Path, array: Any, prompt_len: int, unit: str) -> tuple[str, ...]:
    """Return what speaks against row 0 as the first decode step.

    Raises TraceError if the first rows, of any layer, can only be the prompt's.
    """
    doubts: dict[str, None] = {}
    for layer in range(array.shape[1]):
        rows = array[: min(ROWS_READ, prompt_len), layer].astype(np.int64)  # the prompt has no more
        seq_len = positions_of(prompt_len + np.arange(len(rows)) + 1, unit)
        sign = sign_of_prompt(rows, seq_len, array.shape[2], tokens_of(unit))
        if sign is None:
            continue
        query = sign.query * tokens_of(unit)
        if sign.certain:
            raise TraceError(
                f"{path} begins with rows of the prompt ({sign.what}): give `first_position` "
                f"{query}, and those before position {prompt_len} are left out, or "
                f"`first_position` {prompt_len} if row 0 is the first decode step after all"
            )
        doubts[
            f"{path}: {sign.what}, and the prompt has {prompt_len:,} tokens: give `first_position` "
            f"{query} if the query of row 0 stands there"
        ] = None
    return tuple(doubts)[:1]


ARRAY = Importer(
    name="array",
    summary=".npy, .npz or .pt of (steps, layers, top_k) positions, padded with -1",
    provenance=None,
    source="array of positions",
    read=_read,
)
