"""Fuzz the readers: python tests/fuzz --count 10000 --seed 1."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.runner import main

main()
