"""The options --version and --verbose of the command line."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import click

# What results and errors depend on, and what the extras bring.
PACKAGES = (
    "numpy pandas pyarrow numba llvmlite matplotlib click rich isal"
    " distributed fsspec s3fs gcsfs huggingface_hub vl-convert-python prometheus-client"
    " torch transformers datasets aiconfigurator sglang vllm"
).split()


def wanted_verbose(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    """Remember --verbose, which is parsed first."""
    ctx.meta[__name__] = given


def show_version(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    """Print the version and end; with --verbose, also what a bug report needs."""
    if ctx.resilient_parsing:
        return
    verbose = ctx.meta[__name__]
    if verbose and not given:
        raise click.UsageError("--verbose belongs to --version")
    if not given:
        return
    click.echo(f"hisparse-sim, version {version('hisparse-sim')}")
    if verbose:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        click.echo(f"Python {platform.python_version()} ({sys.implementation.name})")
        click.echo(f"{platform.platform()}, {cores} cores")
        for name in PACKAGES:
            click.echo(f"{name} {_version(name)}")
        for name in sorted(os.environ):
            if name.startswith(("NUMBA_", "HISPARSE_")):
                click.echo(f"{name}={os.environ[name]}")
    ctx.exit()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not installed"
