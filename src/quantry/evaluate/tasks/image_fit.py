"""Where the pixels of an image went when it was made to fit a model's input."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantry.observe import ImageOptions


@dataclass(frozen=True)
class ImageFit:
    """``x_model = x_image * ratio_x + left``, and the same for y.

    Attributes:
        ratio_x: Columns of the model's input for one column of the image.
        ratio_y: The same for rows.
        left: Column of the input at which the image begins; negative where it was cut off.
        top: Row of the input at which the image begins.
    """

    ratio_x: float
    ratio_y: float
    left: int
    top: int

    @classmethod
    def of(cls, options: ImageOptions, width: int, height: int, frame: tuple[int, int]) -> "ImageFit":
        """Return how `quantry.observe` fits an image of a size into a frame.

        Args:
            options: What is done to images.
            width: Columns of the image.
            height: Rows of the image.
            frame: Height and width of the model's input.
        """
        rows, columns = frame
        if options.resize == "stretch":
            return cls(columns / width, rows / height, 0, 0)
        if options.resize == "letterbox":
            ratio = min(columns / width, rows / height)
            new_width = min(columns, max(1, int(width * ratio)))
            new_height = min(rows, max(1, int(height * ratio)))
            centred = options.pad_position == "both"
            left, top = ((columns - new_width) // 2, (rows - new_height) // 2) if centred else (0, 0)
            # Not the rounded size over the original one: decoders divide by the exact ratio.
            return cls(ratio, ratio, left, top)
        ratio = max(columns / width, rows / height) / options.crop_fraction
        new_width, new_height = max(columns, round(width * ratio)), max(rows, round(height * ratio))
        return cls(ratio, ratio, -((new_width - columns) // 2), -((new_height - rows) // 2))

    def to_image(self, boxes: NDArray[np.float64], width: int, height: int) -> NDArray[np.float64]:
        """Return boxes of the model's input in pixels of the image, cut at its edges.

        Args:
            boxes: Corners [n, 4] in pixels of the input.
            width: Columns of the image.
            height: Rows of the image.
        """
        offset = np.array([self.left, self.top, self.left, self.top], np.float64)
        ratio = np.array([self.ratio_x, self.ratio_y, self.ratio_x, self.ratio_y], np.float64)
        edges = np.array([width, height, width, height], np.float64)
        inside: NDArray[np.float64] = np.clip((boxes - offset) / ratio, 0.0, edges)
        return inside
