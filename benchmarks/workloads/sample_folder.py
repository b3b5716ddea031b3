"""A folder of prepared samples, one .npz file each, that every side reads in the same way."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Sample = Mapping[str, npt.NDArray[np.generic]]


def write_samples(folder: Path, samples: Iterable[Sample]) -> Path:
    """Write the samples once; a finished folder is left alone.

    Args:
        folder: Where to; appears only when it is complete.
        samples: Arrays by input name. uint8 stands for pixels and is fed as float32.

    Returns:
        The folder.
    """
    if folder.exists():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for index, sample in enumerate(samples):
        np.savez(partial / f"{index:06d}.npz", **sample)
    partial.rename(folder)
    return folder
