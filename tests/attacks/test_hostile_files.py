"""Files and messages that somebody made to exhaust a machine, to crash it, or to get past a check.

Each attack is tried twice: with the defence, where it is refused in a sentence; and without it, where it succeeds. What
would take a machine's memory is tried while this process may not have much more.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file

sys.path.insert(0, str(Path(__file__).resolve().parent / "fuzz"))

from mutation import can_limit_memory, limit_memory

import fedspan
from fedspan import _foreign
from fedspan._foreign import parse_json, parse_toml
from fedspan.channel import delta, pack, quantize, wire
from fedspan.channel.recipe import channel_from
from fedspan.core.checkpoint import Checkpoint, load_tree, save_tree
from fedspan.core.ledger import Ledger
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot
from fedspan.data import _array_files, _arrow_source, _csv_file, _excel_file
from fedspan.data._arrow_bounds import measure_batches
from fedspan.data.preparation import Preparation
from fedspan.data.survey import TableSurvey
from fedspan.data.tables import open_table
from fedspan.deployment.policy import Policy
from fedspan.engines.start import StartMessage
from fedspan.errors import CheckpointError, FedspanError, InputError, PrivacyError, ProtocolError
from fedspan.jobs.model import Job
from fedspan.privacy.budget import Budget

LITTLE = 1 << 29  # bytes of memory for an attack
needs_limit = pytest.mark.skipif(not can_limit_memory(), reason="only Linux says how much memory a process has")


def read_table(path: Path) -> str:
    """What becomes of a table when there is little memory."""
    with limit_memory(LITTLE):
        try:
            open_table(path)
        except InputError as error:
            return "out of memory" if isinstance(error.__cause__, MemoryError) else "refused"
        except MemoryError:
            return "out of memory"
    return "read"


# LIBSVM


@needs_limit
def test_a_feature_with_a_huge_number_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "table.svm"
    path.write_text("1 2147483646:1\n")
    assert read_table(path) == "refused"
    X, _ = load_svmlight_file(str(path), zero_based=True)
    with limit_memory(LITTLE), pytest.raises(MemoryError):
        X.getnnz(axis=0)


def test_features_are_limited_unless_somebody_says_how_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, most = tmp_path / "table.svm", _array_files._FEATURES_UNASKED
    path.write_text(f"1 1:1 {most}:2\n")
    assert open_table(path).X.shape == (1, most)
    path.write_text(f"1 1:1 {most + 1}:2\n")
    with pytest.raises(InputError, match=r"has a feature 16,777,217, but there may be at most .* set n_features"):
        open_table(path)
    assert open_table(path, Preparation(n_features=most + 1)).X.shape == (1, most + 1)
    monkeypatch.setattr(_array_files, "_FEATURES_UNASKED", 2**40)
    assert open_table(path).X.shape == (1, most + 1)


@needs_limit
def test_sparse_rows_stay_sparse_while_columns_are_agreed_on(tmp_path: Path) -> None:
    path = tmp_path / "table.svm"
    path.write_text("".join(f"1 1:{i} 9999999:nan\n" for i in range(40)))
    survey = TableSurvey(path, Preparation(missing="mean"))
    with limit_memory(LITTLE):
        total, count = survey.sums()
    assert (total[0], count[0], total[-1], count[-1]) == (780.0, 40.0, 0.0, 0.0)
    with limit_memory(LITTLE), pytest.raises(MemoryError):
        survey.X.toarray()


def test_sums_of_sparse_rows_are_those_of_dense_ones() -> None:
    X = np.random.default_rng(0).normal(size=(30, 5)) * (np.random.default_rng(1).random((30, 5)) < 0.4)
    X[3, 2] = X[4, 2] = np.nan
    draft = Preparation(missing="mean")
    for sparse, dense in zip(TableSurvey(sp.csr_array(X), draft).sums(), TableSurvey(X, draft).sums(), strict=True):
        np.testing.assert_allclose(sparse, dense, atol=1e-12)


# Arrays


def write_bomb(path: Path, entries: int) -> None:
    """An .npz file of zeros: small on disk."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("X.npy", "w") as file:
        head = {"descr": "<f8", "fortran_order": False, "shape": (entries // 1000, 1000)}
        np.lib.format.write_array_header_1_0(file, head)
        for _ in range(entries // 1_000_000):
            file.write(bytes(8_000_000))


@needs_limit
def test_a_small_archive_does_not_become_a_large_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.npz"
    write_bomb(path, 80_000_000)
    assert path.stat().st_size < 2_000_000
    assert read_table(path) == "refused"
    monkeypatch.setattr(_array_files, "_check_archive", lambda path: None)
    assert read_table(path) == "out of memory"


def test_a_small_packed_text_does_not_become_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"x\n" + b"1\n" * 5_000_000))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(_csv_file, "_SMALL_TEXT", 1 << 20)  # as with a larger file and the limit as it is
    with pytest.raises(InputError, match="unpacks to more than 1 MB, 100 times the bytes"):
        open_table(path)
    monkeypatch.setattr(_csv_file, "_MOST_TEXT", 1 << 20)
    assert open_table(path).X.shape == (5_000_000, 1)


def test_a_packed_line_without_an_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"x" * 100_000_000))
    with pytest.raises(InputError, match=r"its first line has 67,108,864 characters or more"):
        open_table(path)


SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{}</sheetData></worksheet>'
)


def write_workbook(path: Path, sheet: str, fake_size: int | None = None) -> Path:
    """A workbook with one sheet, written by hand."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    parts = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{package}"><Relationship Id="r1" Type="{links}/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{links}"><sheets><sheet name="s" sheetId="1" '
        'r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}"><Relationship Id="r1" '
        f'Type="{links}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
        with archive.open("xl/worksheets/sheet1.xml", "w") as file:
            begin, end = SHEET.split("{}")
            file.write(begin.encode())
            file.write(sheet.encode())
            file.write(end.encode())
    if fake_size is not None:  # in the list at the end, which says how large the last part is
        data = bytearray(path.read_bytes())
        at = data.rindex(b"PK\x01\x02") + 24
        data[at : at + 4] = struct.pack("<I", fake_size)
        path.write_bytes(data)
    return path


HEADER = '<row r="1"><c r="A1" t="inlineStr"><is><t>x</t></is></c></row>'


def test_a_workbook_by_hand_is_read(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = write_workbook(tmp_path / "t.xlsx", HEADER + '<row r="2"><c r="A2"><v>2.5</v></c></row>')
    assert open_table(path).X.tolist() == [[2.5]]


@pytest.mark.parametrize("fake_size", [None, 1000])
def test_a_small_workbook_does_not_become_a_large_one(
    tmp_path: Path, fake_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the archive says of its size: its parts are unpacked and counted."""
    pytest.importorskip("python_calamine")
    row = "<row><c><v>1</v></c></row>"
    path = write_workbook(tmp_path / "bomb.xlsx", HEADER + row * 100_000, fake_size=fake_size)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(_excel_file, "_SMALL_WORKBOOK", 1 << 20)  # as with a larger file and the limit as it is
    with pytest.raises(InputError, match="unpacks to more than 1 MB"):
        open_table(path)
    if fake_size is None:
        monkeypatch.setattr(_excel_file, "_MOST_UNPACKED_XML", 1 << 20)
        assert open_table(path).X.shape == (100_000, 1)


@pytest.mark.parametrize(
    "stray",
    ['<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>', "<row r='9'><c  r = 'XFD1048576' ><v>1</v></c></row>"],
)
def test_one_cell_far_away_takes_no_memory(tmp_path: Path, stray: str) -> None:
    """The reader would take memory for 17 thousand million cells, and the process would be ended for it."""
    pytest.importorskip("python_calamine")
    path = write_workbook(tmp_path / "far.xlsx", HEADER + stray)
    with pytest.raises(InputError, match="reaches over 1,048,576 rows and 16,384 columns, but has only 2 cells"):
        open_table(path)
    code = (
        "import resource, sys; from fedspan.data import _excel_file; from fedspan.data.tables import open_table\n"
        "_excel_file._check_workbook = lambda path: None\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({4 << 30}, {4 << 30}))\n"
        "open_table(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.returncode != 0


def test_a_workbook_declares_no_entities(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = write_workbook(tmp_path / "t.xlsx", HEADER)
    bad = tmp_path / "bad.xlsx"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bad, "w") as new:
        for part in old.namelist():
            text = old.read(part).decode()
            if part.endswith("sheet1.xml"):
                text = '<!DOCTYPE w [<!ENTITY a "aaaaaaaaaa">]>' + text
            new.writestr(part, text)
    with pytest.raises(InputError, match="declares XML entities"):
        open_table(bad)


def test_an_array_is_not_larger_than_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lie.npz"
    with zipfile.ZipFile(path, "w") as archive, archive.open("X.npy", "w") as file:
        head = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(file, head)
    with pytest.raises(InputError, match="is larger than its bytes"):
        open_table(path)
    monkeypatch.setattr(_array_files, "_check_archive", lambda path: None)
    with pytest.raises(InputError) as refused:
        open_table(path)
    assert isinstance(refused.value.__cause__, MemoryError)


def test_indices_of_a_sparse_matrix_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """scipy believes them, and would read and write anywhere."""
    parts = {"X_data": np.ones(3), "X_indices": np.array([0, 1, 10**6]), "X_indptr": np.array([0, 3])}
    np.savez(tmp_path / "table.npz", **parts, X_shape=np.array([1, 3]))
    with pytest.raises(InputError, match="indices must be < 3"):
        open_table(tmp_path / "table.npz")
    monkeypatch.setattr(sp.csr_array, "check_format", lambda *_, **__: None)
    assert open_table(tmp_path / "table.npz").X.indices.max() == 10**6


def test_no_object_is_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "table.npy", np.array([[{"code": "runs"}]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="Python objects"):
        open_table(tmp_path / "table.npy")
    assert np.load(tmp_path / "table.npy", allow_pickle=True)[0, 0]


# Arrow


def test_bad_offsets_do_not_kill_the_process(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs fedspan[data]")
    from pyarrow import feather

    file = io.BytesIO()
    table = pa.table({"name": ["aaaa", "bbbb", "cccc"] * 50, "y": [1.0] * 150})
    feather.write_feather(table, file, compression="uncompressed")
    data = bytearray(file.getvalue())
    at = data.find(b"".join(struct.pack("<i", 4 * i) for i in range(151)))
    data[at + 36 : at + 44] = struct.pack("<ii", 2**30, 2**31 - 1)
    path = tmp_path / "table.feather"
    path.write_bytes(data)
    with pytest.raises(InputError, match="Offset"):
        open_table(path, Preparation(columns=("y",), id="name"))
    code = (
        "import sys, fedspan.data._arrow_source as source\n"
        "from fedspan.data.preparation import Preparation\n"
        "from fedspan.data.tables import open_table\n"
        "source.check_batch = lambda batch: None\n"
        "open_table(sys.argv[1], Preparation(columns=('y',), id='name'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False)
    assert done.returncode < 0  # killed by a signal


@needs_limit
def test_a_small_feather_file_does_not_become_a_large_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs fedspan[data]")
    from pyarrow import feather

    path, n = tmp_path / "bomb.feather", 80_000_000
    feather.write_feather(pa.table({"x": np.zeros(n)}), path, compression="zstd", chunksize=n)
    assert path.stat().st_size < 100_000
    assert read_table(path) == "refused"
    with path.open("r+b") as file:
        file.write(b"ARR\0\0\0")  # Arrow looks at the mark at the end only
    assert read_table(path) == "refused"
    monkeypatch.setattr(_arrow_source, "_check_unpacked", lambda path: None)
    assert read_table(path) == "out of memory"


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_what_a_feather_file_unpacks_to_is_known_before(tmp_path: Path, compression: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs fedspan[data]")
    from pyarrow import feather

    table = pa.table({"x": np.zeros(9000), "w": pa.array(["a", "b", None] * 3000), "y": np.arange(9000)})
    feather.write_feather(table, tmp_path / "table.feather", compression=compression)
    measured = measure_batches(tmp_path / "table.feather")
    assert measured == 0 if compression == "uncompressed" else 0.95 < measured / table.nbytes <= 1.05


# CSV


@needs_limit
def test_a_file_without_line_ends_is_not_read_as_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    for head in (b"x,y\n1,2\n", b""):
        with path.open("wb") as file:
            file.write(head)
            file.truncate(1_000_000_000)  # zeros, and no bytes on disk
        assert read_table(path) == "refused"
    monkeypatch.setattr(_csv_file, "_LONGEST_LINE", 2**40)
    assert read_table(path) == "out of memory"


def test_a_cell_is_not_larger_than_any_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1," + "9" * 6_000_000 + "\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="field larger than field limit"):
        open_table(path)


# Messages


def test_a_packed_name_asks_for_no_more_numbers_than_its_bytes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = pack()
    blob = np.frombuffer(bytes([0]) + b"\xff" * 20, dtype=np.uint8)
    lies = [
        "Z~p~i8~1000000x1000000",
        "Z~p~i8~0x99999999999",
        "Z~p~i8~-5",
        "Z~p~S999999999~2x2",
        "Z~p~i8~3x" + "9" * 500,
    ]
    for name in lies:
        with pytest.raises(ProtocolError, match="does not decode"):
            stage.decode({name: blob}, ())
    module = sys.modules["fedspan.channel.pack"]
    monkeypatch.setattr(module, "math", SimpleNamespace(prod=lambda shape: 2))  # as if the numbers were not counted
    with pytest.raises(MemoryError, match="TiB"):
        stage.decode({lies[0]: blob}, ())


def test_many_columns_do_not_take_quadratic_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many columns with long unary parts made the decoder look through all bytes behind it."""
    looked = 0
    unpack = np.unpackbits

    def count(packed: Any, **options: Any) -> Any:
        nonlocal looked
        looked += packed.size
        return unpack(packed, **options)

    column = np.concatenate([[0], np.zeros(30, dtype=np.uint8), [0b11000000]]).astype(np.uint8)  # two ones, far behind
    blob = np.tile(column, 500)
    monkeypatch.setattr(np, "unpackbits", count)
    assert pack().decode({"Z~p~i8~2x500": blob}, ())[0]["Z"].shape == (2, 500)
    assert looked < 10 * blob.size


def test_a_quantised_name_fits_its_bytes() -> None:
    stage = quantize(3)
    blob = np.zeros(10, dtype=np.uint8)
    for name in ("Y~q3~f8~4294967296x4294967296", "Y~q3~V99999999~4", "Y~q3~f8~99999999999", "Y~q999~f8~2"):
        with pytest.raises(ProtocolError, match="does not decode"):
            stage.decode({name: blob}, ())
    assert np.prod((4294967296, 4294967296), dtype=np.int64) == 0  # how the product of a shape seemed to fit


def test_no_array_takes_anothers_place() -> None:
    """A name that decodes to that of another array, which was checked."""
    plain = {"Z": np.arange(4)}
    coded, _ = pack().encode(plain, (), lambda _: np.random.default_rng(0))
    with pytest.raises(ProtocolError, match="same name"):
        pack().decode({**coded, **plain}, ())
    assert len({name.split("~p")[0] for name in {**coded, **plain}}) == 1  # one of them would be lost


def test_a_difference_to_nothing_is_refused() -> None:
    stage = delta(quantize(3))
    coded, _ = quantize(3).encode({"Y": np.ones(4)}, (), lambda _: np.random.default_rng(0))
    with pytest.raises(ProtocolError, match="not remembered here"):
        stage.decode(coded, {})
    with pytest.raises(ProtocolError, match="not remembered here"):
        stage.decode(coded, {"Y": np.ones(5)})


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xff" * 8,
        (2**62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (5000).to_bytes(8, "little") + b"[" * 5000,
        (59).to_bytes(8, "little") + b'{"x":{"dtype":"F64","shape":[9,9],"data_offsets":[0,648]}} ',
        (66).to_bytes(8, "little") + b'{"x":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'[:66],
        (57).to_bytes(8, "little") + b'{"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}  ' + b"\0\0",
    ],
    ids=["empty", "no header", "long header", "a list", "nested", "too few bytes", "product", "dtype"],
)
def test_headers_are_not_believed(blob: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a safetensors message"):
        wire.load(blob)


@pytest.mark.parametrize(
    "stamp", ["t 1 2 3 4", "t 1 2 3 4 -5", "t 1 2 3 4 ٣", f"t {'9' * 4000} 2 3 4 5", "t 1 2 3 4 1_0"]
)
def test_stamps_count(stamp: str) -> None:
    with pytest.raises(ProtocolError, match="no stamp"):
        wire.decode(wire.dump({"m": stamp}, {}))


def test_recipes_are_small() -> None:
    nested: Any = ["pack"]
    for _ in range(90):
        nested = ["chain", nested]
    assert channel_from({"up": nested, "down": ["identity"]}).up.kinds == ("pack",)
    for _ in range(900):
        nested = ["chain", nested]
    for recipe in (nested, ["chain", *[["pack"]] * 500]):
        with pytest.raises(ProtocolError, match="more than 100 parts"):
            channel_from({"up": recipe, "down": ["identity"]})
    from fedspan.channel import recipe as module

    with pytest.raises(RecursionError):
        module._make(nested)


# Text


DEEP_JSON, DEEP_TOML = "[" * 100_000, "x = " + "[" * 100_000


def read_policy(folder: Path, text: str) -> None:
    (folder / "local").mkdir()
    (folder / "local" / "fedspan.toml").write_text(text)
    Policy.read(folder)


def read_file(folder: Path, text: str, read: Callable[[Path], object]) -> None:
    (folder / "file").write_text(text)
    read(folder / "file")


TEXT_READERS: dict[str, tuple[Callable[[Path, str], object], str]] = {
    "job": (lambda folder, text: read_file(folder, text, Job.load), DEEP_TOML),
    "dotted job": (lambda folder, text: read_file(folder, text, Job.load), ".".join("a" * 5000) + " = 1"),
    "policy": (read_policy, DEEP_TOML),
    "start": (lambda folder, text: StartMessage.from_json(text), DEEP_JSON),
    "ledger": (lambda folder, text: read_file(folder, text + "\n\n", Ledger.read), DEEP_JSON),
    "budget": (lambda folder, text: read_file(folder, text, Budget), DEEP_JSON),
}


@pytest.mark.parametrize("reader", TEXT_READERS)
def test_deep_nesting_is_refused_in_a_sentence(tmp_path: Path, reader: str) -> None:
    read, text = TEXT_READERS[reader]
    with pytest.raises(FedspanError):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("parse", "naive", "text"),
    [(parse_json, json.loads, DEEP_JSON), (parse_toml, tomllib.loads, DEEP_TOML)],
    ids=["json", "toml"],
)
def test_deep_nesting_is_a_value_error(
    parse: Callable[[str], object], naive: Callable[[str], object], text: str
) -> None:
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        parse(text)
    with pytest.raises(RecursionError):
        naive(text)
    assert parse_json('{"text": "' + "[" * 500 + '"}') == {"text": "[" * 500}  # brackets in a string are no nesting
    assert parse_json("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ('{"a": NaN}', "NaN is not a number that JSON knows"),
        ('{"a": -Infinity}', "-Infinity is not"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 400 + "}", "400 digits"),
    ],
)
def test_json_that_means_different_things_to_different_readers(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)
    assert json.loads(text)  # Python takes all of it


def test_keys_of_many_parts_are_refused_before_they_are_parsed() -> None:
    assert parse_toml(".".join("a" * 90) + " = 1")
    assert parse_toml('text = "' + "." * 500 + '"\nlist = [' + "1.5, " * 500 + "]")["text"] == "." * 500
    for part in ("a", "'a'", '"a.b"', " a "):
        with pytest.raises(ValueError, match="more than 100 parts"):
            parse_toml(".".join([part] * 300_000) + " = 1")  # minutes, if it were parsed
    nested = tomllib.loads(".".join("a" * 200) + " = 1")
    assert str(nested).count("{") == 200  # which tomllib takes


def test_integers_of_toml_have_64_bits() -> None:
    assert parse_toml(f"a = {2**63 - 1}\nb = {-(2**63)}") == {"a": 2**63 - 1, "b": -(2**63)}
    with pytest.raises(ValueError, match="64 bits"):
        parse_toml(f"a = [[{2**63}]]")


def test_a_budget_is_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite noise costs nothing: a file of 0.1 that says so would be taken over with nothing spent."""
    path, spent = tmp_path / "budget.json", '[{"task": "gram", "noise": Infinity, "sampled": 1.0}]'
    path.write_text(f'{{"epsilon": 1.0, "delta": 1e-6, "spent": {spent}}}')
    with pytest.raises(PrivacyError, match="cannot be trusted: it cannot be read"):
        Budget.grant(path, 1.0, 1e-6)
    monkeypatch.setattr("fedspan.privacy.budget.parse_json", json.loads)
    assert Budget.grant(path, 1.0, 1e-6).spent == 0


# Models and checkpoints


def save_model(path: Path, change: Callable[[Any], object]) -> None:
    X = np.random.default_rng(0).normal(size=(10, 3))
    fedspan.FederatedPCA(2, random_state=0).fit([X, X]).save(path)
    tree = load_tree(path, "model")
    change(tree)
    save_tree(path, "model", tree)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tree: tree["learned"].update(components_="<b>"), r"components_ must be .*, but the data holds str"),
        (lambda tree: tree["learned"].update(n_rounds_=[1]), r"n_rounds_ must be int, but the data holds list"),
        (lambda tree: tree["learned"].update(converged_=1), r"converged_ must be bool, but the data holds int"),
        (lambda tree: tree["learned"].update(transform="gone"), r"must have the fields"),
        (lambda tree: tree["learned"].update(coef_=np.ones(3)), r"'coef_' is not learned by this model"),
        (lambda tree: tree["learned"].pop("mean_"), r"'mean_' is missing"),
        (lambda tree: tree["params"].update(tol="x"), r"tol must be a number"),
        (lambda tree: tree["params"].update(evil=1), r"'evil' is not a parameter"),
        (lambda tree: tree.update(params=[1]), r"params must be"),
        (lambda tree: tree.pop("learned"), r"must have the fields estimator, learned, params"),
        (lambda tree: tree["learned"].update(feature_names_in_=[1, 2, 3]), r"feature_names_in_\[0\] must be str"),
    ],
)
def test_models_are_made_of_values_of_the_right_types(
    tmp_path: Path, change: Callable[[Any], object], why: str
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, change)
    with pytest.raises(CheckpointError, match=why):
        fedspan.FederatedPCA.load(path)


def test_without_the_check_a_model_takes_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, lambda tree: tree["learned"].update(seed_="<script>"))
    base = "fedspan.estimators._bases.federated_estimator"
    monkeypatch.setattr(f"{base}.read_model_file", lambda path: load_tree(path, "model"))
    assert fedspan.FederatedPCA.load(path).seed_ == "<script>"


def test_every_attribute_of_a_model_has_a_type() -> None:
    """A new one belongs into `LearnedValues`, or models that hold it cannot be loaded."""
    from fedspan.estimators._bases.model_file import LearnedValues
    from fedspan.estimators.catalogue import ESTIMATORS

    for estimator in ESTIMATORS.values():
        assert set(estimator.learned) <= set(LearnedValues.__annotations__), estimator


def test_checkpoints_name_the_field_that_is_wrong(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    snapshot = SessionSnapshot(HubSnapshot(), {})
    checkpoint.save({"seed": 1}, 1, {"Z": "text"}, snapshot)
    with pytest.raises(CheckpointError, match=r"PcaState\.Z must be|must have the fields"):
        checkpoint.load({"seed": 1}, fedspan.algorithms.SpectralState)


def test_the_limit_of_nesting_is_far_above_what_we_write(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(20):
        tree = {"a": [tree]}
    save_tree(tmp_path / "tree", "model", tree)
    assert load_tree(tmp_path / "tree", "model") == tree
    assert _foreign.DEEPEST == 100
