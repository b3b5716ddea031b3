"""Cases of document 002: accuracy improvement."""

from seed_case import Case, Repair

REPAIRS: tuple[Repair, ...] = ()

CASES: dict[int, Case] = {}

PENDING: dict[int, str] = {
    1: "cross-layer equalization",
    2: "mixed precision",
    3: "AdaRound",
    4: "SmoothQuant",
}
