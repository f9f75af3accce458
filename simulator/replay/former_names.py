"""Names that result files had in earlier versions: their reader maps them here."""

import pandas as pd

COLUMNS = {"regret": "excess_over_min", "item_bytes": "entry_bytes"}
VALUES = {"mode": {"oracle": "zero-cost"}}


def present_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a result file, of whatever version, with the column names of this one."""
    former = {old: new for old, new in COLUMNS.items() if old in rows and new not in rows}
    return rows.rename(columns=former)


def present_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Return such rows with the column names and the values of this version."""
    rows = present_columns(rows)
    values = {column: names for column, names in VALUES.items() if column in rows}
    return rows.replace(values) if values else rows
