"""The build backend: setuptools, but never from a stale build folder.

Setuptools copies modules into `build/lib` and packs what lies there, files deleted since the last
build included. Removing the folder first is the only remedy that needs no care from whoever builds.
"""

import shutil
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def build_wheel(*arguments: Any, **options: Any) -> str:
    """Build a wheel from the tree alone (PEP 517)."""
    shutil.rmtree("build", ignore_errors=True)
    return build_meta.build_wheel(*arguments, **options)
