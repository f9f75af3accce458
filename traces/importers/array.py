"""A plain array of positions: `.npy`, `.npz` or `.pt`, (steps, layers, top_k) or (steps, top_k).

Row r is decode step r, the query at position `prompt_len + r`; entries below 0 are padding. Nothing
in such a file is ever executed: NumPy refuses pickles, torch loads tensors only.
"""

import pickle
import zipfile
from pathlib import Path
from shutil import copyfileobj
from typing import Any

import numpy as np

from hisparse_sim.traces.captured import demands
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.importers.importer import Imported, Importer, Options

_LARGEST_RATIO = 100  # positions of a real trace shrink to a tenth at best

_REMEDY = "check --prompt-len, and --first-position if row 0 is not the first decode step"


def open_npy(path: Path, place: str) -> Any:
    """Map a `.npy` file of integers, (rows, layers, top_k), into memory, read-only."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, MemoryError, OverflowError) as error:
        raise TraceError(f"{place} cannot be read as .npy: {_one_line(error)}") from None
    return shaped(array, place)


def shaped(array: Any, place: str) -> Any:
    """Return the array as (rows, layers, top_k), or raise TraceError."""
    if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, np.integer):
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
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) != 1:
                names = ", ".join(member.filename for member in members[:10])
                raise TraceError(f"{path} holds {len(members)} arrays ({names}), expected one")
            member = members[0]
            if member.file_size > _LARGEST_RATIO * max(member.compress_size, 1 << 16):
                raise TraceError(
                    f"{path} would expand from {member.compress_size} to {member.file_size} "
                    f"bytes, which no real trace does"
                )
            # Unpacked to disk and mapped: an array may be larger than the memory.
            unpacked = scratch / "unpacked.npy"
            with archive.open(member) as source, unpacked.open("wb") as target:
                copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, OSError, RuntimeError, EOFError, NotImplementedError) as error:
        raise TraceError(f"{path} cannot be read as .npz: {_one_line(error)}") from None
    except Exception as error:
        # zlib.error and lzma.LZMAError have no common base.
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path} cannot be unpacked: {_one_line(error)}") from None
    return open_npy(unpacked, str(path))


def _open_pt(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise TraceError(
            f"{path} needs torch to be read: install torch, or save the tensor as .npy"
        ) from None
    try:
        # Tensors and plain containers only; anything else that a pickle could do is refused.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise TraceError(
            f"{path} cannot be read as tensors only, and nothing else in it is loaded: "
            f"{_one_line(error)}"
        ) from None
    if isinstance(found, dict):
        if len(found) != 1:
            raise TraceError(f"{path} holds {len(found)} entries, expected one tensor")
        found = next(iter(found.values()))
    if not isinstance(found, torch.Tensor):
        raise TraceError(f"{path} holds a {type(found).__name__}, expected a tensor")
    return found.numpy()


def _read(path: Path, options: Options) -> Imported:
    if not path.is_file():
        raise TraceError(f"{path} does not exist")
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
        raise TraceError(f"{path} does not say how long the prompt was: give --prompt-len")
    first = options.prompt_len if options.first_position is None else options.first_position
    request = options.request or path.stem
    parts = demands(
        array,
        place=str(path),
        request=request,
        first_position=first,
        prompt_len=options.prompt_len,
        layers=options.layers,
        remedy=_REMEDY,
        complete=False,
    )
    numbered = options.layers is not None
    num_layers = options.num_layers or (None if numbered else array.shape[1])
    top_k = options.top_k or array.shape[2]
    return Imported(parts, top_k, num_layers, {request: options.prompt_len})


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


ARRAY = Importer(
    name="array",
    summary=".npy, .npz or .pt of (steps, layers, top_k) positions, padded with -1",
    provenance=None,
    source="array of positions",
    read=_read,
)
