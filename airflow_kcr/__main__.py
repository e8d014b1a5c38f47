"""`python -m airflow_kcr` is `kcr`; `spark-submit` is given this file, so that a member runs the same everywhere."""

from __future__ import annotations

import sys
from pathlib import Path


def _without_own_folder() -> None:
    """Take this package's folder off the path, where a started script has put it: `kafka` would be found in there."""
    own = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != own]


if __name__ == "__main__":
    _without_own_folder()

    from airflow_kcr.cli import main

    main()
