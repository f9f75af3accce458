"""Ways to spoil files that have a structure: answers and arrays of positions, archives, Parquet."""

import base64
import io
import re
import struct
import warnings
import zipfile
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.mutate import (
    ANY,
    JSON,
    NUMBERS,
    VALUES,
    Mutator,
    change_json,
    change_number,
    change_token,
    flip_bits,
    parsing,
    set_bytes,
)

KEY = b"hisparse_trace"

# --- positions -----------------------------------------------------------------------------------


def change_rows(array: np.ndarray, source: Random) -> np.ndarray:
    """Change positions of an array (rows, layers, top_k), or its shape."""
    array = array.copy()
    what = source.randrange(8)
    if what == 0:
        return array[source.randrange(len(array)) :]
    if what == 1:
        return array[: source.randrange(1, len(array) + 1)]
    if what == 2:
        return array.astype(source.choice([np.int16, np.int64, np.uint8, ">i4", np.float32, bool]))
    if what == 3:
        return source.choice(
            [array[..., None], array[:, 0], array.reshape(-1), array.transpose(1, 0, 2)]
        )
    if what == 4:
        return np.concatenate([array, array[-1:]])
    place = tuple(source.randrange(size) for size in array.shape)
    if what == 5:
        array[place[:-1]] = np.roll(array[place[:-1]], 1)
    elif what == 6:
        array[place[:2]][source.randrange(array.shape[2]) :] = -1
    else:
        array[place] = source.choice([-1, -2, 0, 1, 5, 2**31 - 1, -(2**31), int(array[place]) + 1])
    return array


def change_base64(data: bytes, source: Random) -> bytes:
    """The array that stands in an answer: raw int32 of two layers and top_k 4, or a .npy file."""
    found = [*re.finditer(rb'(?<="indexer_topk": ")[A-Za-z0-9+/=]+', data)]
    place = source.choice(found)
    raw = base64.b64decode(place.group())
    try:
        if raw.startswith(b"\x93NUMPY"):
            file = io.BytesIO()
            np.save(file, change_rows(np.load(io.BytesIO(raw)), source))
            raw = file.getvalue()
        else:
            raw = change_rows(np.frombuffer(raw, "<i4").reshape(-1, 2, 4), source).tobytes()
    except Exception:
        raw = flip_bits(raw, source)
    if source.random() < 0.2:
        raw = source.choice(ANY)(raw, source)
    return data[: place.start()] + base64.b64encode(raw) + data[place.end() :]


ANSWER: list[Mutator] = [change_base64, change_base64, change_base64, *JSON]


def change_npy(data: bytes, source: Random) -> bytes:
    """The array of a .npy file."""
    file = io.BytesIO()
    np.save(file, change_rows(np.load(io.BytesIO(data), allow_pickle=False), source))
    return file.getvalue()


def change_npy_header(data: bytes, source: Random) -> bytes:
    """The text that says type and shape."""
    head, rest = data[10:128], data[128:]
    changed = source.choice([change_number, change_token, flip_bits])(head, source)
    return data[:10] + changed[:118].ljust(118) + rest


NPY: list[Mutator] = [change_npy, change_npy, change_npy_header, *ANY]


# --- zip -----------------------------------------------------------------------------------------


def change_members(data: bytes, source: Random) -> bytes:
    """Members of an archive: other contents, names, methods, twice, none."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    number = source.randrange(len(members))
    name, content = members[number]
    what = source.randrange(7)
    if what == 0:
        members[number] = name, source.choice([*NPY])(content, source)
    elif what == 1:
        members[number] = source.choice(["", "x", "../x", name + "x", "é"]) + name[1:], content
    elif what == 2:
        del members[number]
    elif what == 3:
        members.append((name + source.choice(["", "2"]), content))
    elif what == 4:
        members[number] = name, bytes(source.choice([0, 1, 100_000, 9_000_000]))
    file = io.BytesIO()
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that come twice
        with zipfile.ZipFile(file, "w", source.choice(methods)) as archive:
            for each, inside in members:
                archive.writestr(each, inside)
    return file.getvalue()


ZIP: list[Mutator] = [change_members, change_members, *ANY]


# --- Parquet -------------------------------------------------------------------------------------


def _footer_start(data: bytes) -> int:
    length = struct.unpack("<I", data[-8:-4])[0] if len(data) > 12 else 0
    return max(0, len(data) - 8 - length)


def _chunks(data: bytes) -> list[tuple[int, int]]:
    """Return where the column chunks of a sound file begin, and their bytes."""
    footer = pq.read_metadata(io.BytesIO(data))
    chunks = [
        footer.row_group(group).column(column)
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    ]
    places = [
        (chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
        for chunk in chunks
    ]
    return [(first, size) for first, size in places if size > 0 and 0 < first < len(data)]


def flip_in_footer(data: bytes, source: Random) -> bytes:
    """A bit or a byte of the footer, or of its length."""
    place = source.randrange(_footer_start(data), max(1, len(data)))
    change = source.choice([flip_bits, set_bytes])
    return data[:place] + change(data[place : place + 1], source)[:1] + data[place + 1 :]


@parsing
def flip_in_page_header(data: bytes, source: Random) -> bytes:
    """A bit near the beginning of a column chunk."""
    chunks = _chunks(data)
    first, size = source.choice(chunks)
    place = first + source.randrange(min(size, 40))
    return data[:place] + bytes([data[place] ^ 1 << source.randrange(8)]) + data[place + 1 :]


@parsing
def exchange_chunks(data: bytes, source: Random) -> bytes:
    """Column chunks of one size in each other's place, or one in place of the other."""
    chunks = _chunks(data)
    pairs = [
        (one, other)
        for number, one in enumerate(chunks)
        for other in chunks[number + 1 :]
        if one[1] == other[1] and data[one[0] :][: one[1]] != data[other[0] :][: other[1]]
    ]
    (first, size), (second, _) = source.choice(pairs)
    spoilt = bytearray(data)
    spoilt[first : first + size] = data[second : second + size]
    if source.random() < 0.7:
        spoilt[second : second + size] = data[first : first + size]
    return bytes(spoilt)


def change_digit(data: bytes, source: Random) -> bytes:
    """A digit of the JSON in the footer: metadata that stay well-formed."""
    start = _footer_start(data)
    found = [*re.finditer(rb"(?<=[ :\"])\d+", data[start:])]
    place = source.choice(found)
    where = start + source.randrange(place.start(), place.end())
    return data[:where] + bytes([source.choice(b"0123456789")]) + data[where + 1 :]


@parsing
def change_cells(data: bytes, source: Random) -> bytes:
    """Values of rows, their order, or the metadata; written again as another program would."""
    rows = pq.read_table(io.BytesIO(data), use_threads=False)
    keys = dict(rows.schema.metadata or {})
    listed = rows.to_pylist()
    for _ in range(source.choice([1, 1, 2, 3])):
        row = source.choice(listed)
        what = source.randrange(6)
        if what == 0:
            number = source.randrange(len(listed))
            listed.insert(source.randrange(len(listed)), listed[number])
        elif what == 1 and len(listed) > 1:
            listed.remove(row)
        elif what == 2:
            keys[KEY] = change_json(keys.get(KEY, b"{}"), source)
        elif what == 3:
            other = source.choice(listed)
            name = source.choice([*row])
            row[name] = other[name]
        elif what == 4 and row["positions"]:
            row["positions"] = [*row["positions"]]
            place = source.randrange(len(row["positions"]))
            row["positions"][place] = source.choice([-1, -2, 0, 7, None, 2**31 - 1, row["seq_len"]])
        else:
            name = source.choice(["request", "layer", "step", "seq_len"])
            row[name] = source.choice(
                [None, "", "é"] if name == "request" else [None, -1, 0, 3, 32767]
            )
    options = {
        "row_group_size": source.choice([None, 1, 3, 7]),
        "compression": source.choice(["none", "snappy", "zstd"]),
        "data_page_version": source.choice(["1.0", "2.0"]),
        "write_page_checksum": source.random() < 0.5,
    }
    file = io.BytesIO()
    made = pa.Table.from_pylist(listed, pa.schema(map(_nullable, rows.schema)))
    pq.write_table(made.replace_schema_metadata(keys), file, **options)
    return file.getvalue()


@parsing
def change_cells_of(data: bytes, source: Random) -> bytes:
    """Values of a table that is no trace."""
    listed = pq.read_table(io.BytesIO(data), use_threads=False).to_pylist()
    name = source.choice([*listed[0]])
    change = source.choice([VALUES, NUMBERS, [row[name] for row in listed]])
    for row in listed[:: source.choice([1, len(listed)])]:
        row[name] = source.choice(change)
    if source.random() < 0.2:
        for row in listed:
            del row[name]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(listed), file)
    return file.getvalue()


def _nullable(field: pa.Field) -> pa.Field:
    kind = pa.list_(field.type.value_type) if pa.types.is_list(field.type) else field.type
    return pa.field(field.name, kind)


ROWS: list[Mutator] = [change_cells]
PARQUET: list[Mutator] = [
    flip_in_footer, flip_in_footer, flip_in_page_header, exchange_chunks, change_digit, *ANY,
]  # fmt: skip
