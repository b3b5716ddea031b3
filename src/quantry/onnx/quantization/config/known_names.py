"""Configurations of which only fields can be set, so that a misspelt one never passes in silence."""

from typing import Any, ClassVar

from quantry.recipe.checked import field_names, unknown_name


class KnownAttributes:
    """A dataclass of which only fields can be set.

    Example:
        >>> from quantry.onnx import QuantizationConfig
        >>> QuantizationConfig().calibration_method = "MinMax"
        Traceback (most recent call last):
        ...
        quantry.errors.RecipeError: QuantizationConfig must be given known attributes, got 'calibration_method'; \
did you mean 'calibrate_method'?
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field.

        Raises:
            RecipeError: There is no such field; the message has the nearest spelling.
        """
        if name not in field_names(type(self)):
            raise unknown_name(type(self), "attributes", name)
        super().__setattr__(name, value)
