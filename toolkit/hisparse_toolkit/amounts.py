"""Counts as people read them: with separators, and with decimals only where there are some."""

from __future__ import annotations

from fractions import Fraction


def amount(value: Fraction | int) -> str:
    """Whole as "57,116"; otherwise two decimals, cut off: a promise is never rounded in its own favour."""
    whole, rest = divmod(int(value * 100), 100)
    return f"{whole:,}" if Fraction(value).denominator == 1 else f"{whole:,}.{rest:02d}"


def requests_text(value: Fraction | int) -> str:
    """As in "1 request" and "9.20 requests"."""
    return f"{amount(value)} request{'' if value == 1 else 's'}"


def tokens_text(count: int) -> str:
    """As in "1 token" and "1,048,576 tokens"."""
    return f"{count:,} token{'' if count == 1 else 's'}"
