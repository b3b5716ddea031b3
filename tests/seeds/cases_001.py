"""Cases of document 001: the guide to automatic search."""

from seed_case import Case, Repair

REPAIRS: tuple[Repair, ...] = ()

CASES: dict[int, Case] = {}

PENDING: dict[int, str] = {
    1: "two-stage search",
    2: "advanced search of finetuning",
    3: "joint parameters",
    4: "AutoSearch",
}
