"""The length of an axis as a polynomial in the names of other axes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_Monomial = tuple[str, ...]  # the names multiplied, sorted; empty for the constant term

_OPEN = "?"


@dataclass(frozen=True)
class Size:
    """An integer polynomial such as ``2*batch*heads + 1``; equal polynomials compare equal.

    Attributes:
        terms: Monomials with their coefficients, which are never zero, in order.

    Example:
        >>> str(Size.of("b") * Size.of("s") + Size.of(1))
        'b*s + 1'
    """

    terms: tuple[tuple[_Monomial, int], ...]

    @classmethod
    def of(cls, length: int | str) -> Self:
        """Return a length given as a number or in the notation of ``str(size)``; other text is one name."""
        if isinstance(length, int):
            return cls._collect([((), length)])
        try:
            return cls._collect([_parse_term(term) for term in length.split(" + ")])
        except ValueError:
            return cls._collect([((length,), 1)])

    @classmethod
    def _collect(cls, terms: Iterable[tuple[_Monomial, int]]) -> Self:
        total: Counter[_Monomial] = Counter()
        for monomial, coefficient in terms:
            total[monomial] += coefficient
        nonzero = ((monomial, coefficient) for monomial, coefficient in total.items() if coefficient)
        return cls(tuple(sorted(nonzero, key=lambda term: (-len(term[0]), term[0]))))

    def __add__(self, addend: Self) -> Self:
        return self._collect([*self.terms, *addend.terms])

    def __neg__(self) -> Self:
        return self._collect([(monomial, -coefficient) for monomial, coefficient in self.terms])

    def __sub__(self, subtrahend: Self) -> Self:
        return self + -subtrahend

    def __mul__(self, factor: Self) -> Self:
        return self._collect(
            [(tuple(sorted(monomial + another)), a * b) for monomial, a in self.terms for another, b in factor.terms]
        )

    def divided_by(self, divisor: Self) -> Self | None:
        """Return the exact quotient by a number or a single product, or None if there is none."""
        if len(divisor.terms) != 1:
            return self._collect([((), 1)]) if self == divisor and self.terms else None
        ((names, factor),) = divisor.terms
        quotients = [_divide_term(monomial, coefficient, names, factor) for monomial, coefficient in self.terms]
        exact = [quotient for quotient in quotients if quotient is not None]
        return self._collect(exact) if len(exact) == len(quotients) else None

    @property
    def number(self) -> int | None:
        """The length if it is a number, else None."""
        if not self.terms:
            return 0
        (monomial, coefficient), *higher = self.terms
        return coefficient if not monomial and not higher else None

    @classmethod
    def open(cls, tensor: str, axis: int) -> Self:
        """Return the length of an axis that has neither number nor name; it equals only itself."""
        return cls._collect([((f"{_OPEN}{tensor}[{axis}]",), 1)])

    def as_dim(self) -> int | str | None:
        """Return the entry of a shape for this length; None if it depends on an axis without a name."""
        if any(name.startswith(_OPEN) for monomial, _ in self.terms for name in monomial):
            return None
        return str(self) if self.number is None else self.number

    def __str__(self) -> str:
        return " + ".join(_write_term(*term) for term in self.terms) or "0"


def _parse_term(text: str) -> tuple[_Monomial, int]:
    first, *factors = text.split("*")
    coefficient, names = (int(first), factors) if first.lstrip("-").isdigit() else (1, [first, *factors])
    if not all(name.isidentifier() for name in names):
        raise ValueError(text)
    return tuple(sorted(names)), coefficient


def _write_term(monomial: _Monomial, coefficient: int) -> str:
    factors = [str(coefficient)] if coefficient != 1 or not monomial else []
    return "*".join([*factors, *monomial])


def _divide_term(monomial: _Monomial, coefficient: int, names: _Monomial, factor: int) -> tuple[_Monomial, int] | None:
    remaining = Counter(monomial)
    remaining.subtract(names)
    if coefficient % factor or min(remaining.values(), default=0) < 0:
        return None
    return tuple(sorted(remaining.elements())), coefficient // factor
