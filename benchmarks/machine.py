"""Where a benchmark ran: the part of a committed result that says what its figures mean."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe_machine() -> dict[str, str | int]:
    """Return the processor, the cores that this process may use, and the system."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }


def describe_versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """Return the processor's name with family and model, which virtual machines blur less."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    name = fields.get("model name", platform.machine())
    return f"{name}, family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
