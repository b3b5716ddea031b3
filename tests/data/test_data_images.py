import pickle
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from quantry.data.images import ImageFolder, ImageOptions
from quantry.data.open_data import calibration_data, pixel_doubts, pixel_notes
from quantry.errors import DataError
from quantry.graph.float_model import InputSignature
from quantry.memo import fingerprint


def inputs(*shape, dtype=np.float32):
    return (InputSignature("x", np.dtype(dtype), shape),)


NCHW = inputs(1, 3, 8, 12)
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)


def save(path, pixels=PIXELS, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path.parent


def only(data):
    (sample,) = data
    return sample["x"]


def test_pixels_arrive_as_they_are(tmp_path):
    image = only(calibration_data(save(tmp_path / "a.png"), NCHW))
    assert (image.dtype, image.shape) == (np.float32, (1, 3, 8, 12))
    np.testing.assert_array_equal(image[0], PIXELS.transpose(2, 0, 1))


def test_scale_mean_and_std_are_applied_in_this_order(tmp_path):
    options = ImageOptions(scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    image = only(calibration_data(save(tmp_path / "a.png"), NCHW, options))
    expected = (PIXELS / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 2.0]
    np.testing.assert_allclose(image[0], expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-6)


def test_bgr_turns_the_channels_around_before_mean_and_std(tmp_path):
    options = ImageOptions(color="BGR", mean=(1.0, 2.0, 3.0))
    image = only(calibration_data(save(tmp_path / "a.png"), NCHW, options))
    np.testing.assert_array_equal(image[0], (PIXELS[:, :, ::-1] - [1.0, 2.0, 3.0]).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((1, 8, 12, 3), ImageOptions(), PIXELS[None]),
        (("n", 8, 12, 3), ImageOptions(), PIXELS[None]),
        ((3, 8, 12), ImageOptions(), PIXELS.transpose(2, 0, 1)),
        ((8, 12, 3), ImageOptions(), PIXELS),
        ((1, None, "h", "w"), ImageOptions(size=(8, 12)), PIXELS.transpose(2, 0, 1)[None]),
        ((1, "h", "w", None), ImageOptions(size=(8, 12), layout="NHWC"), PIXELS[None]),
    ],
)
def test_layout_and_size_follow_the_model_or_the_options(shape, options, expected, tmp_path):
    np.testing.assert_array_equal(only(calibration_data(save(tmp_path / "a.png"), inputs(*shape), options)), expected)


def test_uint8_models_get_bytes(tmp_path):
    image = only(calibration_data(save(tmp_path / "a.png"), inputs(1, 8, 12, 3, dtype=np.uint8)))
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image[0], PIXELS)


def test_one_channel_is_luminance(tmp_path):
    image = only(calibration_data(save(tmp_path / "a.png"), inputs(1, 1, 8, 12)))
    np.testing.assert_array_equal(image[0, 0], np.asarray(Image.fromarray(PIXELS).convert("L")))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_images_of_any_mode_become_three_channels(mode, tmp_path):
    Image.fromarray(PIXELS).convert(mode).save(tmp_path / "a.tif")
    assert only(calibration_data(tmp_path, NCHW)).shape == (1, 3, 8, 12)


def test_stretch_resizes_like_pillow(tmp_path):
    image = only(calibration_data(save(tmp_path / "a.png"), inputs(1, 3, 20, 20)))
    expected = np.asarray(Image.fromarray(PIXELS).resize((20, 20), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(image[0], expected.transpose(2, 0, 1))


@pytest.mark.parametrize(("position", "top"), [("end", 0), ("both", 2)])
def test_letterbox_keeps_the_aspect_ratio_and_pads(position, top, tmp_path):
    options = ImageOptions(resize="letterbox", pad_position=position, pad_value=7)
    image = only(calibration_data(save(tmp_path / "a.png"), inputs(1, 12, 12, 3), options))[0]
    np.testing.assert_array_equal(image[top : top + 8], PIXELS)
    rest = np.delete(image, np.s_[top : top + 8], axis=0)
    assert (rest == 7).all()


def test_center_crop_fills_the_frame(tmp_path):
    options = ImageOptions(resize="center-crop")
    image = only(calibration_data(save(tmp_path / "a.png"), inputs(1, 8, 8, 3), options))[0]
    np.testing.assert_array_equal(image, PIXELS[:, 2:10])


def test_center_crop_may_cut_a_margin_off(tmp_path):
    options = ImageOptions(resize="center-crop", crop_fraction=0.5)
    image = only(calibration_data(save(tmp_path / "a.png"), inputs(1, 4, 6, 3), options))[0]
    np.testing.assert_array_equal(image, PIXELS[2:6, 3:9])


def test_images_are_found_in_sub_folders_in_the_order_of_their_paths(tmp_path):
    for index, name in enumerate(["b/1.png", "a/2.PNG", "c.jpg"]):
        save(tmp_path / name, np.full((8, 12, 3), 50 * index, np.uint8))
    (tmp_path / "notes.txt").write_text("not an image")
    data = calibration_data(str(tmp_path), NCHW)
    assert [round(float(sample["x"].mean())) for sample in data] == [50, 0, 100]
    assert len(data) == 3


def test_folders_of_classes_take_turns(tmp_path):
    for index, name in enumerate(["cat/1.png", "cat/2.png", "cat/3.png", "dog/1.png", "fox/1.png", "fox/2.png"]):
        save(tmp_path / name, np.full((8, 12, 3), 40 * index, np.uint8))
    data = calibration_data(tmp_path, NCHW)
    assert [round(float(sample["x"].mean())) for sample in data] == [0, 120, 160, 40, 200, 80]
    assert [round(float(image.mean())) for image in data.source.read_as(ImageOptions(), 2)] == [0, 40]


def test_fixed_batches_are_filled(tmp_path):
    for index in range(4):
        save(tmp_path / f"{index}.png", np.full((8, 12, 3), index, np.uint8))
    data = calibration_data(tmp_path, inputs(2, 3, 8, 12))
    assert [sample["x"][:, 0, 0, 0].tolist() for sample in data] == [[0, 1], [2, 3]]


def test_orientation_tag_is_obeyed(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(only(calibration_data(tmp_path, inputs(1, 8, 12, 3)))[0], PIXELS[::-1, ::-1])


def test_fingerprint_is_of_bytes_and_options_not_of_names(tmp_path):
    first = calibration_data(save(tmp_path / "one" / "a.png"), NCHW)
    same = calibration_data(save(tmp_path / "two" / "b.png"), NCHW)
    other_options = calibration_data(tmp_path / "one", NCHW, ImageOptions(scale=0.5))
    other_size = calibration_data(tmp_path / "one", inputs(1, 3, 4, 4))
    assert fingerprint(first) == fingerprint(same)
    assert len({fingerprint(data) for data in (first, other_options, other_size)}) == 3
    save(tmp_path / "one" / "b.png")
    assert fingerprint(calibration_data(tmp_path / "one", NCHW)) != fingerprint(first)
    assert fingerprint(calibration_data(tmp_path / "one", NCHW).take(1)) == fingerprint(first)


def test_image_folder_carries_its_options(tmp_path):
    asked = ImageFolder(save(tmp_path / "a.png"), ImageOptions(scale=2.0))
    plain = calibration_data(tmp_path, NCHW, ImageOptions(scale=2.0))
    assert fingerprint(calibration_data(asked, NCHW)) == fingerprint(plain)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (inputs(1, 3, "h", 8), ImageOptions(), r"pass ImageOptions\(size="),
        (inputs(1, 5, 8, 8), ImageOptions(), "1 or 3 channels"),
        (inputs(1, 10), ImageOptions(), "rank 3 or 4"),
        (inputs(1, 3, 8, 12, dtype=np.int64), ImageOptions(), "float32 or uint8"),
        (inputs(1, 3, 8, 12, dtype=np.uint8), ImageOptions(scale=0.5), "uint8 pixels"),
        (NCHW + inputs(1), ImageOptions(), "model with one input"),
        (NCHW, ImageOptions(size=(4, 4)), r"got float32\[1, 3, 4, 4\]"),
        (NCHW, ImageOptions(mean=(1.0, 2.0)), "1 or 3 values"),
    ],
)
def test_models_that_take_no_such_images_raise(model, options, message, tmp_path):
    with pytest.raises(DataError, match=message):
        calibration_data(save(tmp_path / "a.png"), model, options)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_unreadable_image_is_named(content, tmp_path):
    (tmp_path / "broken.png").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.png"):
        calibration_data(tmp_path, NCHW)


@pytest.mark.parametrize("channels", [1, 3])
def test_image_of_more_than_eight_bits_raises(channels, tmp_path):
    Image.fromarray(np.arange(96, dtype=np.uint16).reshape(8, 12) * 600).save(tmp_path / "wide.png")
    with pytest.raises(DataError, match=r"8 bits per channel, got mode 'I;16'.*wide\.png"):
        calibration_data(tmp_path, inputs(1, channels, 8, 12))


def test_truncated_image_is_named(tmp_path):
    save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    data = calibration_data(tmp_path, NCHW)
    with pytest.raises(DataError, match=r"b\.png"):
        list(data)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layout": "NCWH"}, "did you mean 'NCHW'"),
        ({"color": "rgba"}, "color"),
        ({"resize": "strech"}, "did you mean 'stretch'"),
        ({"interpolation": "cubic"}, "did you mean 'bicubic'"),
        ({"pad_position": "start"}, "pad_position"),
        ({"size": (0, 4)}, "size"),
        ({"std": (1.0, 0.0, 1.0)}, "std"),
        ({"pad_value": 300}, "pad_value"),
        ({"crop_fraction": 0.0}, "crop_fraction"),
        ({"crop_fraction": "most"}, "crop_fraction must be a finite number, got 'most'"),
        ({"scale": "1/255"}, "scale must be a finite number, got '1/255'"),
        ({"scale": 0}, "scale must not be zero"),
        ({"scale": float("nan")}, "scale must be a finite number, got nan"),
        ({"mean": 0.5}, "mean must be finite numbers"),
        ({"mean": "0.5"}, "mean must be finite numbers"),
        ({"std": (1.0, "x")}, "std must be finite numbers"),
        ({"size": 224}, "size must be finite numbers"),
    ],
)
def test_image_options_are_checked(wrong, message):
    with pytest.raises(DataError, match=message):
        ImageOptions(**wrong)


def test_missing_folder_raises(tmp_path):
    with pytest.raises(DataError, match="must be an existing folder"):
        calibration_data(ImageFolder(tmp_path / "missing"), NCHW)


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
IMAGENET_BYTES = {"mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)}


@pytest.mark.parametrize(
    "options",
    [
        ImageOptions(),
        ImageOptions(scale=1 / 255),
        ImageOptions(scale=1 / 255, **IMAGENET),
        ImageOptions(**IMAGENET_BYTES),
        ImageOptions(mean=(104, 117, 123), color="BGR"),
        ImageOptions(mean=(127.5,), std=(127.5,)),
        ImageOptions(scale=1 / 127.5, mean=(1.0, 1.0, 1.0)),
        ImageOptions(std=(255.0, 255.0, 255.0)),
    ],
)
def test_usual_options_of_images_are_not_doubted(options, tmp_path):
    assert pixel_doubts(calibration_data(save(tmp_path / "a.png"), NCHW, options)) == ()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (ImageOptions(**IMAGENET), "--pixel-scale 1/255"),
        (ImageOptions(mean=IMAGENET["mean"]), "--pixel-scale 1/255"),
        (ImageOptions(std=IMAGENET["std"]), "--pixel-scale 1/255"),
        (ImageOptions(scale=1 / 255, **IMAGENET_BYTES), "remove --pixel-scale"),
        (ImageOptions(scale=1 / 255, mean=IMAGENET_BYTES["mean"]), "remove --pixel-scale"),
        (ImageOptions(scale=1 / 255, std=IMAGENET_BYTES["std"]), "remove --pixel-scale"),
    ],
)
def test_mean_and_std_of_another_scale_are_doubted_with_the_likely_fix(options, advice, tmp_path):
    (doubt,) = pixel_notes(calibration_data(save(tmp_path / "a.png"), NCHW, options))
    assert advice in str(doubt)


def test_options_of_images_for_bytes_are_not_doubted(tmp_path):
    data = calibration_data(save(tmp_path / "a.png"), inputs(1, 8, 12, 3, dtype=np.uint8), ImageOptions())
    assert pixel_doubts(data) == ()


def test_misspelt_option_of_images_gets_the_nearest_spelling():
    with pytest.raises(DataError, match="must exist, got 'men'; did you mean 'mean'"):
        ImageOptions(men=(0.5,))
    assert replace(ImageOptions(scale=0.5), color="BGR") == pickle.loads(
        pickle.dumps(ImageOptions(None, scale=0.5, color="BGR"))
    )
