"""A few items of our own in the schema of LongBench v2."""

from typing import Any


def row(number: int, **changes: Any) -> dict[str, Any]:
    """Return an item of our own in the schema of the data set."""
    return {
        "_id": f"id-{number}",
        "domain": ["Code", "Single-Document QA"][number % 2],
        "sub_domain": ["Repository", "Novel", "Law"][number % 3],
        "difficulty": "easy",
        "length": ["short", "long"][number % 2],
        "question": " What is it? ",
        "choice_A": "first",
        "choice_B": "second",
        "choice_C": "third",
        "choice_D": "fourth",
        "answer": "B",
        "context": f"\nDocument {number}.\n",
        **changes,
    }


ROWS = [row(number) for number in range(12)]
