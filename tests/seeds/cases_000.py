"""Cases of document 000: automatic search with an own evaluator."""

from seed_case import Case, Repair

REPAIRS: tuple[Repair, ...] = ()

CASES: dict[int, Case] = {}

PENDING: dict[int, str] = {
    1: "search space of automatic search",
    2: "several search spaces",
    3: "search space with a GPU",
    4: "evaluator in the configuration",
    5: "evaluator assigned to the configuration",
    6: "the example detector",
    7: "name of the starting configuration",
    8: "examples/auto_search_detector",
}
