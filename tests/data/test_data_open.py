import gc
import multiprocessing
import os
import pickle
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantry.data.calibration_data import CalibrationData, SampleSource
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data
from quantry.data.random_data import RandomData
from quantry.errors import DataError, StoreError
from quantry.graph.float_model import InputSignature
from quantry.memo import fingerprint


def signature(name="x", dtype=np.float32, shape=("n", 3)):
    return InputSignature(name, np.dtype(dtype), shape)


X = (signature(),)
TWO = (signature("ids", np.int64, (1, "length")), signature("mask", np.float32, (1, "length")))
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


class Reader:
    """The onnxruntime protocol."""

    def __init__(self, samples):
        self.samples = iter(samples)
        self.calls = 0

    def get_next(self):
        self.calls += 1
        return next(self.samples, None)


def open_files():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def stacked(data):
    return np.concatenate([sample["x"] for sample in data])


def npy(folder, **arrays):
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


FORMS = {
    "array": lambda _: ROWS,
    "float64 array": lambda _: ROWS.astype(np.float64),
    "array with a batch axis": lambda _: ROWS[:, None],
    "list of rows": lambda _: list(ROWS),
    "list of batches": lambda _: list(ROWS[:, None]),
    "list of dicts": lambda _: [{"x": row} for row in ROWS],
    "tuples with labels": lambda _: tuple((row, 7) for row in ROWS),
    "lists of numbers": lambda _: [(row.tolist(),) for row in ROWS],
    "generator": lambda _: (row for row in ROWS),
    "reader": lambda _: Reader([{"x": row} for row in ROWS]),
    "mapping": lambda _: {"x": ROWS},
    "npy": lambda folder: npy(folder, all=ROWS) / "all.npy",
    "npz": lambda folder: np.savez(folder / "all.npz", x=ROWS) or str(folder / "all.npz"),
    "folder of npy": lambda folder: npy(folder, a=ROWS[0], b=ROWS[1:2], c=ROWS[2], d=ROWS[3]),
    "folder of npz": lambda folder: [np.savez(folder / f"{i}.npz", x=ROWS[i]) for i in range(4)] and folder,
    "folder for each input": lambda folder: npy(folder / "x", a=ROWS[0], b=ROWS[1], c=ROWS[2], d=ROWS[3]).parent,
    "indexable": lambda _: type("Indexed", (), {"__getitem__": lambda _, i: [*ROWS][i]})(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_data_gives_the_same_samples(form, tmp_path):
    data = calibration_data(FORMS[form](tmp_path), X)
    for _ in range(2):
        samples = list(data)
        assert [sample["x"].shape for sample in samples] == [(1, 3)] * 4
        assert all(sample["x"].dtype == np.float32 and sample["x"].flags.c_contiguous for sample in samples)
        np.testing.assert_array_equal(stacked(samples), ROWS)
    assert len(data) == 4
    assert fingerprint(data) == fingerprint(calibration_data(ROWS, X))


def test_torch_data_loader_is_read_without_labels():
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.tensor(ROWS, requires_grad=True), torch.arange(4))
    data = calibration_data(torch.utils.data.DataLoader(dataset, batch_size=2), X)
    assert [sample["x"].shape for sample in data] == [(2, 3), (2, 3)]
    np.testing.assert_array_equal(stacked(data), ROWS)


def test_torch_bfloat16_is_widened_and_sparse_tensors_raise():
    torch = pytest.importorskip("torch")
    (sample,) = calibration_data([torch.tensor(ROWS[0], dtype=torch.bfloat16)], X)
    np.testing.assert_array_equal(sample["x"][0], ROWS[0])
    with pytest.raises(DataError, match=r"dense.*torch\.sparse_coo.*sample 0, input 'x'"):
        calibration_data([torch.tensor(ROWS[0]).to_sparse()], X)


def test_used_up_reader_is_reported_from_an_empty_one():
    reader = Reader([{"x": ROWS[0]}])
    list(calibration_data(reader, X))
    with pytest.raises(DataError, match=r"first get_next\(\).*create a new one; in Reader"):
        calibration_data(reader, X)


def test_take_is_the_data_of_the_first_samples():
    data = calibration_data(iter(ROWS), X)
    assert fingerprint(data.take(2)) == fingerprint(calibration_data(ROWS[:2], X))
    assert [len(list(data.take(n))) for n in (1, 3, 9)] == [1, 3, 4]
    assert len(calibration_data(ROWS, X).take(3).take(5)) == 3


def test_take_of_nothing_raises():
    with pytest.raises(DataError, match="at least 1"):
        calibration_data(ROWS, X).take(0)


def test_content_decides_the_fingerprint():
    changed = ROWS.copy()
    changed[2, 1] += 1
    digests = {fingerprint(calibration_data(rows, X)) for rows in (ROWS, changed, ROWS[::-1], ROWS[:3], ROWS.copy())}
    assert len(digests) == 4


def test_reader_is_drained_once_and_only_as_far_as_needed():
    reader = Reader([{"x": row} for row in ROWS])
    data = calibration_data(reader, X)
    assert reader.calls == 1
    list(data.take(2))
    assert reader.calls == 2
    assert fingerprint(data.take(3)) == fingerprint(data.take(3))
    assert reader.calls == 3
    list(data)
    list(data)
    assert reader.calls == 5
    assert data.size == 4


def test_length_of_unread_data_is_unknown():
    data = calibration_data(iter(ROWS), X)
    assert data.size is None
    with pytest.raises(TypeError, match="unknown before"):
        len(data)
    assert len(list(data)) == 4


def test_reader_may_fill_the_same_array_again_and_again():
    def reader():
        buffer = np.empty(3, np.float32)
        for row in ROWS:
            buffer[:] = row
            yield buffer

    np.testing.assert_array_equal(stacked(calibration_data(reader(), X)), ROWS)


def test_spool_keeps_no_named_file_and_closes_with_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = open_files()
    data = calibration_data(iter(ROWS), X)
    list(data)
    assert list(tmp_path.iterdir()) == []
    del data
    gc.collect()
    assert open_files() <= before


def test_full_disk_is_reported(monkeypatch):
    class FullFile:
        def seek(self, *_):
            return 0

        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: FullFile())
    with pytest.raises(StoreError, match=r"No space left.*TMPDIR"):
        calibration_data(iter(ROWS), X)


def test_several_inputs_by_name_and_by_position():
    ids, mask = np.arange(5), np.ones(5)
    named = calibration_data([{"mask": mask, "ids": ids.astype(np.int32)}], TWO)
    placed = calibration_data([(ids, mask, "label")], TWO)
    assert fingerprint(named) == fingerprint(placed)
    (sample,) = named
    assert [(name, array.dtype, array.shape) for name, array in sample.items()] == [
        ("ids", np.int64, (1, 5)),
        ("mask", np.float32, (1, 5)),
    ]


def test_fixed_batch_takes_whole_groups_and_warns_of_the_rest():
    with pytest.warns(UserWarning, match="the last 1 of 4 are not used"):
        data = calibration_data(ROWS, (signature(shape=(3, 3)),))
    (sample,) = data
    np.testing.assert_array_equal(sample["x"], ROWS[:3])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "at least one sample"),
        (np.zeros((0, 3)), "at least one sample"),
        (iter([]), "at least one sample"),
        (Reader([]), "at least one sample"),
        ([{"X": ROWS[0]}], "did you mean 'x'"),
        ([{"x": ROWS[0], "labels": 1}], "got an array for 'labels'"),
        ([{}], "got no array for 'x'"),
        ([()], "got 0 arrays"),
        ([ROWS[0].astype(np.uint8)], "as for training"),
        ([ROWS[0].astype(np.int64)], "needs float32"),
        ([ROWS[0] > 1], "got bool"),
        ([np.float64([1e300, 0, 0])], "got float64"),
        ([np.zeros(4, np.float32)], r"needs float32\[n, 3\], got float32\[1, 4\]"),
        ([np.zeros((1, 1, 3), np.float32)], r"got float32\[1, 1, 3\]"),
        ([np.zeros((0, 3), np.float32)], "at least one value"),
        ([np.array([1, None, 2])], "dtype object"),
        ([np.array(["a", "b", "c"])], "array of numbers"),
        ([([1.0, [2.0], 3.0],)], "ragged"),
        ([np.float32([0, np.nan, 1])], r"NaN at \(0, 1\); sample 0"),
        ([np.float32([0, 1, np.inf])], r"an infinity at \(0, 2\); sample 0"),
        ([np.float32([-np.inf, 1, 0])], r"an infinity at \(0, 0\); sample 0"),
        (42, "must be a path"),
        (np.float32(3), "must be a path"),
        (np.array(3.0), "got a scalar"),
        ({"x": ROWS, "y": ROWS[:2]}, "same number of samples"),
        ({"y": ROWS}, "got an array for 'y'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_do_not_fit_raise_before_any_work(data, message):
    with pytest.raises(DataError, match=message):
        calibration_data(data, X)


def test_later_samples_are_checked_when_they_are_read():
    data = calibration_data([ROWS[0], ROWS[1], np.zeros(5, np.float32)], X)
    with pytest.raises(DataError, match="sample 2"):
        list(data)


def test_bad_sample_of_a_reader_stays_bad():
    data = calibration_data(iter([ROWS[0], np.zeros(5), ROWS[1]]), X)
    for _ in range(2):
        with pytest.raises(DataError, match="sample 1"):
            list(data)


def test_integers_are_narrowed_only_without_loss():
    inputs = (signature("i", np.int32, ("n",)),)
    (sample,) = calibration_data([np.array([1, -2])], inputs)
    assert sample["i"].dtype == np.int32
    with pytest.raises(DataError, match="got int64"):
        calibration_data([np.array([1, 1 << 40])], inputs)


def test_half_precision_is_widened():
    (sample,) = calibration_data([ROWS[0].astype(np.float16)], X)
    assert sample["x"].dtype == np.float32


def test_bfloat16_is_widened():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    (sample,) = calibration_data([ROWS[0].astype(ml_dtypes.bfloat16)], X)
    np.testing.assert_array_equal(sample["x"], ROWS[:1])


def test_scalar_inputs_stay_scalars():
    (sample,) = calibration_data([{"s": 3.0}], (signature("s", np.float32, ()),))
    assert sample["s"].shape == ()


def test_array_for_a_model_of_two_inputs_raises():
    with pytest.raises(DataError, match="model with one input"):
        calibration_data(ROWS, TWO)
    with pytest.raises(DataError, match="mapping from names"):
        calibration_data(list(ROWS), TWO)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing", "must exist"),
        (lambda folder: folder, "must contain images"),
        (lambda folder: (folder / "a.csv").write_text("no") and folder / "a.csv", r"must be \.npy, \.npz or a \.txt"),
        (lambda folder: (folder / "a.txt").write_text("no") and folder / "a.txt", "must exist, got 'no'"),
        (lambda folder: (folder / "a.txt").write_text("\n") and folder / "a.txt", "must name images or arrays"),
        (lambda folder: (folder / "a.npy").write_bytes(b"no") and folder / "a.npy", "a.npy"),
        (lambda folder: (folder / "a.npz").write_bytes(b"PK\3\4no") and folder / "a.npz", "a.npz"),
        (lambda folder: (folder / "a.npy").write_bytes(b"no") and folder, "a.npy"),
    ],
)
def test_unusable_paths_are_named(make, message, tmp_path):
    with pytest.raises(DataError, match=message):
        calibration_data(make(tmp_path), X)


def test_sub_folders_of_unequal_length_raise(tmp_path):
    npy(tmp_path / "ids", a=np.arange(3))
    npy(tmp_path / "mask", a=np.ones(3), b=np.ones(3))
    with pytest.raises(DataError, match="same number of samples"):
        calibration_data(tmp_path, TWO)


def test_sub_folders_make_samples_by_position(tmp_path):
    npy(tmp_path / "ids", a=np.arange(3), b=np.arange(4))
    npy(tmp_path / "mask", a=np.ones(3), b=np.ones(4))
    assert [sample["mask"].shape for sample in calibration_data(tmp_path, TWO)] == [(1, 3), (1, 4)]


def test_no_data_means_one_random_sample_with_a_warning():
    inputs = (signature("x", np.float32, ("n", None, "h", "w")), signature("i", np.int64, (None, "k")))
    with pytest.warns(UserWarning, match="random"):
        data = calibration_data(None, inputs)
    (sample,) = data
    assert sample["x"].shape == (1, 3, 32, 32)
    assert sample["i"].shape == (1, 16)
    assert 0 <= sample["x"].min() < 0.01
    assert 0.99 < sample["x"].max() < 1
    assert set(np.unique(sample["i"])) <= {0, 1}


def test_random_data_are_the_same_each_time_and_differ_by_seed():
    first, same, other = (calibration_data(RandomData(3, seed=s), X) for s in (1, 1, 2))
    assert fingerprint(first) == fingerprint(same) != fingerprint(other)
    rows = stacked(first)
    assert rows.shape == (3, 3)
    assert len(np.unique(rows)) == 9


def test_random_data_keep_to_their_range():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = stacked(calibration_data(RandomData(50, low=-2.0, high=5.0), X))
    assert -2 <= values.min() < -1
    assert 4 < values.max() < 5


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"low": 1.0, "high": 0.5}])
def test_random_data_refuse_impossible_requests(wrong):
    with pytest.raises(DataError, match="RandomData"):
        RandomData(**wrong)


def test_calibration_data_pass_through():
    data = calibration_data(ROWS, X)
    assert calibration_data(data, X) is data


def test_image_options_need_a_path():
    with pytest.raises(DataError, match="folder or a list of images"):
        calibration_data(ROWS, X, ImageOptions())


def test_sources_of_ones_own_are_welcome():
    class Twice(SampleSource):
        size = 2

        def read(self):
            return iter([ROWS[0], ROWS[1]])

    data = CalibrationData(Twice(), X)
    assert fingerprint(data) == fingerprint(calibration_data(ROWS[:2], X))


def test_hidden_files_are_skipped(tmp_path):
    npy(tmp_path, a=ROWS[0])
    Path(tmp_path / ".DS_Store.npy").write_bytes(b"junk")
    assert len(calibration_data(tmp_path, X)) == 1


def _reads_right(data, expected, times):
    for _ in range(times):
        for sample, array in zip(data, expected, strict=True):
            if not (sample["x"] == array).all():
                os._exit(3)
    os._exit(0)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_forked_processes_read_a_spool_next_to_each_other():
    arrays = [np.full((1, 2000), number, np.float32) for number in range(16)]
    data = calibration_data(iter([{"x": array} for array in arrays]), (signature(shape=(1, 2000)),))
    assert len(list(data)) == 16
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=_reads_right, args=(data, arrays, 60)) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for reader in readers:
            reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0, 0]


def test_a_spool_travels_with_all_of_its_samples():
    arrays = [np.full((1, 3), number, np.float32) for number in range(5)]
    data = calibration_data(iter([{"x": array} for array in arrays]), (signature(shape=(1, 3)),))
    next(iter(data))
    there = pickle.loads(pickle.dumps(data))
    assert [sample["x"][0, 0] for sample in there] == [0, 1, 2, 3, 4]
    assert fingerprint(there) == fingerprint(data)


def test_opened_data_take_no_image_options():
    opened = calibration_data(np.zeros((2, 3), np.float32), X)
    with pytest.raises(DataError, match="ImageOptions need a path"):
        calibration_data(opened, X, ImageOptions())


def test_data_opened_for_other_inputs_are_checked_again():
    arrays = calibration_data([np.zeros((1, 3), np.float32)], X)
    assert [list(sample) for sample in calibration_data(arrays, (replace(X[0], name="z"),))] == [["z"]]
    named = calibration_data([{X[0].name: np.zeros((1, 3), np.float32)}], X)
    with pytest.raises(DataError, match="match the model's inputs"):
        calibration_data(named, (replace(X[0], name="z"),))


def test_files_of_arrays_take_no_image_options(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 3), np.float32))
    for path in (tmp_path, tmp_path / "a.npy"):
        with pytest.raises(DataError, match="ImageOptions need a path to a folder or a list of images, got arrays"):
            calibration_data(path, X, ImageOptions())
