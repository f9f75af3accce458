"""Compares unpacked wheels with the table of known releases.

    python benchmarks/in_engine/known_releases.py FOLDER...

FOLDER: an unpacked wheel, which holds `sglang/` (and `sglang-VERSION.dist-info/`, or is named
`sglang-VERSION`). Exits with 1 if one of them differs.
"""

import sys
from pathlib import Path

from hisparse_sim.gpu_replay.engine.releases import EngineError, check_package


def main() -> int:
    wrong = 0
    for folder in map(Path, sys.argv[1:]):
        infos = [path.name.removesuffix(".dist-info") for path in folder.glob("sglang-*.dist-info")]
        version = (infos or [folder.name])[0].removeprefix("sglang-")
        try:
            check_package(folder / "sglang", version)
            print(f"{version}: as known")
        except EngineError as error:
            wrong += 1
            print(f"{version}: {error}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
