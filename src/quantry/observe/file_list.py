"""A text file that names the files of samples, such as calibration.txt of a search."""

from pathlib import Path

from quantry.errors import DataError
from quantry.observe.array_source import ARRAY_SUFFIXES, ArrayFolder, InputFolders
from quantry.observe.conform import Signatures
from quantry.observe.image_folder import IMAGE_SUFFIXES, ImageSource
from quantry.observe.image_options import ImageOptions
from quantry.observe.sample_source import SampleSource

LIST_SUFFIX = ".txt"


def listed_source(path: Path, inputs: Signatures, options: ImageOptions | None) -> SampleSource:
    """Return the samples whose files a text names, in its order.

    Each line is the path of an image, or of a .npy or .npz file with one sample; of a model with several inputs, the
    .npy files of all of them, with tabs between. Paths are taken from the current folder, else from the text's.

    Args:
        path: The text.
        inputs: The inputs of the model.
        options: What is done to images.

    Raises:
        DataError: A file is missing, or the files are not of one kind.
    """
    try:
        lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"a list of files must be a readable text, got {error}; in {path}") from error
    samples = [[_found(name, path) for name in line] for line in lines]
    files = [file for sample in samples for file in sample]
    kinds = {file.suffix.lower() for file in files}
    if kinds and kinds <= set(IMAGE_SUFFIXES):
        return ImageSource(files, options, inputs, str(path))
    if not kinds or not kinds <= set(ARRAY_SUFFIXES):
        got = ", ".join(sorted(kinds)) or "nothing"
        raise DataError(f"a list of files must name images or arrays {ARRAY_SUFFIXES}, got {got}; in {path}")
    if options is not None:
        raise DataError(f"ImageOptions go with images, got arrays; in {path}")
    if all(len(sample) == 1 for sample in samples):
        return ArrayFolder(files)
    names = [signature.name for signature in inputs]
    if any(len(sample) != len(names) for sample in samples):
        raise DataError(f"each line of a list of files must name one for each input {names}; in {path}")
    return InputFolders({name: [sample[at] for sample in samples] for at, name in enumerate(names)}, str(path))


def _found(name: str, listed_in: Path) -> Path:
    for path in (Path(name.strip()), listed_in.parent / name.strip()):
        if path.is_file():
            return path
    raise DataError(f"a list of files must name files that exist, got {name.strip()!r}; in {listed_in}")
