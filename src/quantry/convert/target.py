"""What a quantized model can be translated to."""

import enum

from quantry.emit import CONTRIB, STANDARD, VITIS, Dialect
from quantry.recipe import VitisDialect


class Target(enum.Enum):
    """A dialect of Q/DQ pairs, or no vendor's operators at all; the value is its spelling on the command line."""

    QDQ = "qdq"
    VAI = "vai"
    VITIS = "vitis"
    QUARK = "quark"
    CONTRIB = "contrib"
    STANDARD = "standard"

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of pairs; None for `STANDARD`, which inlines whatever a vendor's operator means."""
        if self is Target.STANDARD:
            return None
        if self is Target.QDQ:
            return STANDARD
        return CONTRIB if self is Target.CONTRIB else VITIS[VitisDialect(self.value)]
