"""A pocket calculator for the formulas that `hisparse explain` prints."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from fractions import Fraction

_FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "floor": lambda one: Fraction(math.floor(one)),
    "ceil": lambda one: Fraction(math.ceil(one)),
    "min": min,
    "max": max,
}


def evaluated(text: str) -> Fraction:
    """The exact value of an arithmetic text with + - x /, floor, ceil, min and max."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace(" x ", " * ")
    return _value(ast.parse(plain, mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=operation, right=right):
            first, second = _value(left), _value(right)
            match operation:
                case ast.Add():
                    return first + second
                case ast.Sub():
                    return first - second
                case ast.Mult():
                    return first * second
                case ast.Div():
                    return first / second
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*map(_value, arguments))
    raise ValueError(ast.dump(node))
