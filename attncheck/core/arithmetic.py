"""Divisors of integers of any size."""

MAX_COUNT = 1 << 20  # no real count of GPUs, heads or rows is larger; above it only the divisor 1 is offered


def largest_divisor(number: int, at_most: int) -> int:
    """Return the largest divisor of `number` up to `at_most`; 1 if the numbers are unrealistically large."""
    start = min(number, at_most, MAX_COUNT)
    return next((size for size in range(start, 1, -1) if number % size == 0), 1)


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, ascending; only 1 if it is unrealistically large."""
    return [1] if number > MAX_COUNT else [size for size in range(1, number + 1) if number % size == 0]
